"""Failing prompts become tasks of harness candidates: durable, bounded, the oldest stay."""

from dataclasses import dataclass
from typing import Protocol

import structlog

from reefcommon.events import SampleReady
from reefkit.verifier import VerifierFailed
from services.evaluator.domain.promotion import PromotedTask, promoted
from services.evaluator.plans import Plan, Plans

log = structlog.get_logger()


class PromotedTasks(Protocol):
    """Raises Unavailable."""

    async def promote(
        self, scenario: str, task: PromotedTask, at_most: int, per_client: int
    ) -> bool:
        """Keep a task; False if it is there, or if there is no room."""

    async def promoted(self, scenario: str) -> list[PromotedTask]: ...


@dataclass(frozen=True, slots=True)
class Promotions:
    plans: Plans
    kept: PromotedTasks

    async def on_sample(self, event: SampleReady) -> None:
        """Keep the prompt of a failed answer, if the verifier can score that answer."""
        section = self.plans.config.evaluation
        found = promoted(event, section.promote_max_score) if section.promote_failures else None
        plan = self._plan(event.scenario)
        if found is None or plan is None:
            return
        try:
            # A verifier that does not know such a task would fail every comparison.
            await plan.verifier.scores(found.task, [found.answer])
        except VerifierFailed as error:
            log.info("not_promoted", scenario=event.scenario, task=found.id, reason=str(error))
            return
        limits = section.max_promoted_tasks, section.max_promoted_per_client
        if await self.kept.promote(event.scenario, found, *limits):
            log.info("failure_promoted", scenario=event.scenario, task=found.id)

    def _plan(self, scenario: str) -> Plan | None:
        bound = [one for one in self.plans.config.reef if one.scenario == scenario]
        found = (self.plans.of(scenario, one.recipe) for one in bound)
        # Only the answer of a chat is recorded; a program or an agent would have to run again.
        return next((plan for plan in found if plan.tasks and plan.runner == "chat"), None)
