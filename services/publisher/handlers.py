"""Arrivals of the publisher. Each verdict or command becomes a piece of work."""

# The id of a work comes from its event, so that a redelivery finds it.

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog

from reefcommon import events
from reefcommon.artifacts import BASE_CONTENT_ID
from reefcommon.config import ServeConfig
from reefcommon.errors import Transient
from reefcommon.evaluation import bound
from reefcommon.ids import time_ordered_hex
from reefcommon.releases import ReleaseHeads, base_weights
from services.publisher.domain import releases
from services.publisher.domain.work import NotPublished, Work
from services.publisher.publication import WorkRunner, Works

log = structlog.get_logger()

_Planning = events.ScenarioCreateRequested | events.RollbackRequested | events.PromoteRequested


@dataclass(frozen=True, slots=True)
class Handlers:
    config: ServeConfig
    heads: ReleaseHeads
    works: Works
    runner: WorkRunner
    now: Callable[[], datetime]

    async def on_evaluated(self, event: events.CandidateEvaluated) -> None:
        """Publish a winner, keep it for review, or report that it is not published."""
        candidate, evaluation = event.candidate, event.evaluation
        if event.joined is not None:
            return  # the other's verdict brings both
        known = await self.works.get(event.scenario, candidate.event_id)
        if known is not None and not _evaluated_again(known, event):
            await self._continue(known, event)
            return
        work = Work(
            work_id=candidate.event_id,
            scenario=event.scenario,
            candidate_id=candidate.event_id,
            candidate=candidate,
            partner=event.partner,
            evaluation=evaluation,
        )
        if evaluation.verdict != "select":
            failed = f"{evaluation.verdict}: " * (evaluation.verdict != "reject")
            await self.runner.reject(work, "rejected", failed + evaluation.reason)
            return
        if await self._published(event):
            return
        head = await self._head(event.scenario)
        try:
            release = releases.from_candidate(head, event)
            await self._check_one_scenario(release)
        except NotPublished as error:
            if error.outcome == "conflicted" and await self.runner.requeue(work):
                return
            await self.runner.reject(work, error.outcome, error.reason)
            return
        work = work.to("evaluated", release=release)
        own = bound(self.config, event.scenario, candidate.lineage.recipe)
        by_hand = candidate.kind == "routing" and not candidate.lineage.recipe
        reviewed = releases.needs_review(self.config, event.scenario, own)
        if not by_hand and (reviewed or await self.heads.held(event.scenario) is not None):
            await self._keep_for_review(work, release)
            return
        await self.runner.run(await self.runner.begin(work))

    async def on_command(self, event: events.Command) -> None:
        """Create a scenario, roll back, promote a pending release, or hold winners."""
        if isinstance(event, events.HoldRequested):
            said = {"reason": event.reason, "command_id": event.event_id}
            await self.runner.emit(events.ScenarioHeld, event.event_id, event.scenario, **said)
            await self.heads.hold(event.scenario, event.reason)
            return
        known = await self.works.get(event.scenario, event.event_id)
        if known is not None:
            await self._continue(known, event)
            return
        work = Work(work_id=event.event_id, scenario=event.scenario, command_id=event.event_id)
        try:
            release = await self._planned(event)
            if release is not None:
                await self._check_one_scenario(release)
        except NotPublished as error:
            await self._refuse(work, event, error)
            return
        if release is None:
            log.info("scenario_exists", scenario=event.scenario)
            return
        work = work.to("evaluated", release=release, candidate_id=release.candidate_id)
        if isinstance(event, events.RollbackRequested) and event.expected_head:
            work = work.model_copy(update={"only_on": event.expected_head})
        await self.runner.run(await self.runner.begin(work))

    async def create(self, scenario: str) -> None:
        event_id, at = f"create-{scenario}", self.now()
        event = events.ScenarioCreateRequested(event_id=event_id, at=at, scenario=scenario)
        await self.on_command(event)

    async def resume(self) -> None:
        for work in await self.works.live():
            log.info("work_resumed", scenario=work.scenario, work=work.work_id, state=work.state)
            await self.runner.run(work)

    async def _planned(self, event: _Planning) -> events.Release | None:
        match event:
            case events.ScenarioCreateRequested():
                if await self.heads.head(event.scenario) is not None:
                    return None
                incarnation = time_ordered_hex()[:16]
                return releases.creation(event.scenario, event.event_id, incarnation, event.at)
            case events.RollbackRequested(release_id=target_id):
                target = await self.heads.release(event.scenario, target_id)
                if target is None or target_id in await self._pending(event.scenario):
                    state = "waits for review: promote it" if target else "is not in the chain"
                    raise NotPublished("aborted", f"cannot roll back: release {target_id} {state}")
                head = await self._head(event.scenario)
                if event.expected_head not in ("", head.release_id):
                    moved = f"meant for {event.expected_head}, but {head.release_id} is the head"
                    raise NotPublished("conflicted", moved)
                return releases.rolled_back(head, target, event.event_id, event.at, event.reason)
            case events.PromoteRequested(release_id=pending_id):
                pending = (await self._pending(event.scenario)).get(pending_id)
                if pending is None:
                    unknown = f"no pending release {pending_id} in this scenario"
                    raise NotPublished("aborted", f"cannot promote: {unknown}")
                head = await self._head(event.scenario)
                return await self.runner.promoted(head, pending, event.at, event.reason)

    async def _pending(self, scenario: str) -> dict[str, events.Release]:
        return {release.release_id: release for release in await self.heads.pending(scenario)}

    async def _check_one_scenario(self, planned: events.Release) -> None:
        head = await self.heads.head(planned.scenario)
        before = base_weights(head) if head is not None else BASE_CONTENT_ID
        if planned.operation != "creation" and base_weights(planned) == before:
            return
        others = [name for name in await self.heads.scenarios() if name != planned.scenario]
        # One other scenario is enough: two can never have come beside full weights.
        heads = {name: await self.heads.head(name) for name in others[:1]}
        bases = {name: base_weights(other) for name, other in heads.items() if other is not None}
        releases.check_one_scenario(planned, before, bases)

    async def _continue(
        self, work: Work, event: events.CandidateEvaluated | events.Command
    ) -> None:
        if work.ended:
            log.info("event_repeated", scenario=event.scenario, work=work.work_id, state=work.state)
            return
        await self.runner.run(work)

    async def _head(self, scenario: str) -> events.Release:
        head = await self.heads.head(scenario)
        if head is None:
            remedy = "create it by POST /reef/scenarios, or name it in serve.yaml"
            raise Transient(f"scenario {scenario!r} does not exist: {remedy}")
        return head

    async def _published(self, event: events.CandidateEvaluated) -> bool:
        candidate = event.candidate
        chain = await self.heads.chain(event.scenario)
        if any(release.candidate_id == candidate.event_id for release in chain):
            return True
        # An older one: its id follows from the head that it was compared with.
        parent = await self.heads.release(event.scenario, event.evaluation.head_release_id)
        if parent is None:
            return False
        plan = (event.scenario, parent.sequence + 1, parent.release_id, candidate.event_id)
        release_id = releases.release_id(*plan)
        if release_id in await self._pending(event.scenario):
            return False
        return await self.heads.release(event.scenario, release_id) is not None

    async def _keep_for_review(self, work: Work, release: events.Release) -> None:
        await self.heads.put_pending(release)
        about = (work.work_id, work.scenario)
        await self.runner.emit(events.ReleasePending, *about, release=release)
        await self.works.save(work.to("pending"))
        log.info("release_pending", scenario=work.scenario, release=release.release_id)

    async def _refuse(self, work: Work, event: events.Command, error: NotPublished) -> None:
        pending = None
        if isinstance(event, events.PromoteRequested) and error.outcome == "conflicted":
            pending = (await self._pending(event.scenario)).get(event.release_id)
        candidate = pending.candidate_id if pending is not None else None
        work = work.model_copy(update={"candidate_id": candidate})
        await self.runner.reject(work, error.outcome, error.reason)
        if pending is not None:
            await self.heads.drop_pending(event.scenario, pending.release_id)


def _evaluated_again(known: Work, event: events.CandidateEvaluated) -> bool:
    before = known.evaluation.head_release_id if known.evaluation is not None else ""
    return known.state == "requeued" and before != event.evaluation.head_release_id
