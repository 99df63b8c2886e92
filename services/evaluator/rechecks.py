"""The harness that serves, compared again with the harness that it replaced."""

# head of kind harness --so many verdicts, or seconds--> the same tasks for both
#     the old harness wins --> RollbackRequested on exactly this head --publisher--> a new release
#
# A release of a rollback is never looked at, so that two harnesses do not take turns. The command's
# id follows from head and turn: a repeat is the same command.

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

import structlog
from prometheus_client import Counter

from reefcommon import topics
from reefcommon.events import CandidateProposed, Policy, Release, RollbackRequested
from reefcommon.ids import digest
from reefkit.bus import EventPublisher
from services.evaluator.bench import DoesNotServe
from services.evaluator.comparer import Comparer
from services.evaluator.domain.policies import Ruling, decide

log = structlog.get_logger()

RECHECKS = Counter("reef_rechecks_total", "comparisons of a head again", ["scenario", "outcome"])
# Others select without a shown difference, and would bring the old harness back by chance.
_STRICT: tuple[Policy, ...] = ("score_comparison", "strictly_better", "paired_confidence")


class RecheckStore(Protocol):
    """Raises Unavailable."""

    async def compared_with(self, scenario: str, head_id: str) -> int:
        """Return how many candidates were compared with a head."""

    async def rechecks(self, scenario: str, head_id: str) -> int: ...

    async def set_rechecks(self, scenario: str, head_id: str, count: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Rechecks:
    comparer: Comparer
    store: RecheckStore
    events: EventPublisher
    now: Callable[[], datetime]

    async def due(self, scenario: str) -> tuple[Release, int] | None:
        """Return the head that must be compared again, and the turn, from 1."""
        section = self.comparer.plans.config.evaluation
        if not section.recheck_every and not section.recheck_after_s:
            return None
        head = await self.comparer.heads.head(scenario)
        if head is None or head.kind != "harness" or head.operation == "rollback":
            return None
        turn = 1 + await self.store.rechecks(scenario, head.release_id)
        verdicts = await self.store.compared_with(scenario, head.release_id)
        age_s = (self.now() - head.created_at).total_seconds()
        by_verdicts = 0 < section.recheck_every * turn <= verdicts
        by_age = 0 < section.recheck_after_s * turn <= age_s
        return (head, turn) if by_verdicts or by_age else None

    async def all_due(self) -> list[str]:
        section = self.comparer.plans.config.evaluation
        if not section.recheck_every and not section.recheck_after_s:
            return []
        names = await self.comparer.heads.scenarios()
        return [name for name in names if await self.due(name) is not None]

    async def run(self, scenario: str) -> None:
        """Compare a head that is due, and ask for the rollback if it lost. May be repeated."""
        if (found := await self.due(scenario)) is None:
            return
        head, turn = found
        parent = await self.comparer.heads.release(scenario, head.parent_id or "")
        ruling = await self._compare(head, parent, turn) if parent is not None else None
        outcome: str = "not compared" if ruling is None else ruling.verdict
        if ruling is not None and parent is not None and ruling.verdict == "select":
            outcome = "rolled back"
            command = self._command(head, parent, turn, ruling)
            await self.events.publish(command, topics.COMMANDS)
        await self.store.set_rechecks(scenario, head.release_id, turn)
        RECHECKS.labels(scenario, outcome).inc()
        reason = ruling.reason if ruling is not None else ""
        about = {"scenario": scenario, "head": head.release_id, "turn": turn}
        log.info("head_rechecked", outcome=outcome, reason=reason, **about)

    async def _compare(self, head: Release, parent: Release, turn: int) -> Ruling | None:
        """Return the ruling on the old harness as a candidate; None if there are no tasks."""
        before = CandidateProposed(
            event_id="rck-" + digest("recheck", head.release_id, turn),
            at=self.now(),
            scenario=head.scenario,
            kind="harness",
            content_id=parent.contents.get("harness", ""),
            base_release_id=head.release_id,
            lineage=head.lineage,
        )
        plan = await self.comparer.with_promoted(
            before, await asyncio.to_thread(self.comparer.plans.plan, before)
        )
        if not plan.tasks:
            return None
        try:
            evidence = await self.comparer.compare_tasks(before, head, plan)
        except DoesNotServe as error:
            return Ruling("evaluation_failed", f"could not be run: {error}")
        if evidence.failures:  # what could not be run is no loss
            return Ruling("evaluation_failed", f"could not be run: {evidence.failures[0]}")
        policy = plan.rule.policy if plan.rule.policy in _STRICT else "paired_confidence"
        return decide(evidence.tasks, replace(plan.rule, policy=policy, look=turn))

    def _command(
        self, head: Release, parent: Release, turn: int, ruling: Ruling
    ) -> RollbackRequested:
        lost = f"recheck {turn}: {head.release_id} lost against {parent.release_id}"
        return RollbackRequested(
            event_id="cmd-recheck-" + digest("recheck", head.release_id, turn),
            at=self.now(),
            scenario=head.scenario,
            release_id=parent.release_id,
            reason=f"{lost}, which it had replaced: {ruling.reason}",
            expected_head=head.release_id,
        )
