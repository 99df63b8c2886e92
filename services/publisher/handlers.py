"""What arrives at the publisher: verdicts and commands. Each becomes one piece of work, under an id that a redelivery repeats."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

import structlog

from reefcommon import topics
from reefcommon.artifacts import BASE_CONTENT_ID
from reefcommon.config import ServeConfig
from reefcommon.errors import Transient
from reefcommon.evaluation import bound
from reefcommon.events import (
    CandidateEvaluated,
    Command,
    PromoteRequested,
    Release,
    ReleasePending,
    RollbackRequested,
    ScenarioCreateRequested,
)
from reefcommon.ids import time_ordered_hex
from reefcommon.releases import ReleaseHeads, base_weights
from reefkit.bus import EventPublisher
from reefkit.telemetry import current_traceparent
from services.publisher.domain import releases
from services.publisher.domain.work import Turned, Work
from services.publisher.publication import Publication, Works

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Handlers:
    """The arrivals, in the order of a release's life."""

    config: ServeConfig
    heads: ReleaseHeads
    works: Works
    publication: Publication
    events: EventPublisher
    now: Callable[[], datetime]

    async def on_evaluated(self, event: CandidateEvaluated) -> None:
        """A verdict: publish a winner, keep it for a person, or tell that it came to nothing."""
        candidate = event.candidate
        known = await self.works.get(event.scenario, candidate.event_id)
        if known is not None:
            await self._go_on(known, event)
            return
        work = Work(
            work_id=candidate.event_id,
            scenario=event.scenario,
            candidate_id=candidate.event_id,
            evaluation=event.evaluation,
        )
        verdict = event.evaluation.verdict
        if verdict != "select":
            reason = event.evaluation.reason
            await self.publication.reject(
                work, "rejected", reason if verdict == "reject" else f"{verdict}: {reason}"
            )
            return
        if await self._published(event):
            return
        try:
            release = releases.from_candidate(await self._head(event.scenario), event)
            await self._check_alone(release)
        except Turned as turned:
            await self.publication.reject(work, turned.outcome, turned.reason)
            return
        work = work.to("evaluated", release=release)
        own = bound(self.config, event.scenario, candidate.lineage.recipe)
        if releases.needs_review(self.config, event.scenario, own):
            await self._keep_for_review(work, release)
            return
        await self._go_on(await self.publication.begin(work), event)

    async def on_command(self, event: Command) -> None:
        """Somebody asks something of the release chain."""
        known = await self.works.get(event.scenario, event.event_id)
        if known is not None:
            await self._go_on(known, event)
            return
        work = Work(work_id=event.event_id, scenario=event.scenario, command_id=event.event_id)
        try:
            release = await self._planned(event)
            if release is not None:
                await self._check_alone(release)
        except Turned as turned:
            await self._turn_down(work, event, turned)
            return
        if release is None:
            log.info("scenario_exists", scenario=event.scenario)
            return
        work = work.to("evaluated", release=release, candidate_id=release.candidate_id)
        await self.publication.run(await self.publication.begin(work))

    async def create(self, scenario: str) -> None:
        """Make a scenario of the configuration exist."""
        await self.on_command(
            ScenarioCreateRequested(
                event_id=f"create-{scenario}",
                at=self.now(),
                scenario=scenario,
                traceparent=current_traceparent(),
            )
        )

    async def resume(self) -> None:
        """Go on with everything that a stop or a crash interrupted."""
        for work in await self.works.live():
            log.info("work_resumed", scenario=work.scenario, work=work.work_id, state=work.state)
            await self.publication.run(work)

    async def _planned(self, event: Command) -> Release | None:
        """The release that a command leads to; None where a scenario exists already. Raises Turned where it leads to none."""
        match event:
            case ScenarioCreateRequested():
                if await self.heads.head(event.scenario) is not None:
                    return None
                return releases.creation(
                    event.scenario, event.event_id, time_ordered_hex()[:16], event.at
                )
            case RollbackRequested(release_id=target_id):
                target = await self.heads.release(event.scenario, target_id)
                waiting = {
                    release.release_id for release in await self.heads.pending(event.scenario)
                }
                if target is None or target_id in waiting:
                    what = (
                        "waits for a person: promote it instead"
                        if target
                        else "is not in the chain of this scenario"
                    )
                    raise Turned("aborted", f"cannot roll back: release {target_id} {what}")
                return releases.rolled_back(
                    await self._head(event.scenario), target, event.event_id, event.at, event.reason
                )
            case PromoteRequested(release_id=pending_id):
                found = [
                    release
                    for release in await self.heads.pending(event.scenario)
                    if release.release_id == pending_id
                ]
                if not found:
                    raise Turned(
                        "aborted",
                        f"cannot promote: no pending release {pending_id} in this scenario",
                    )
                return releases.promoted(
                    await self._head(event.scenario), found[0], event.at, event.reason
                )

    async def _check_alone(self, planned: Release) -> None:
        """Raises Turned where full weights would replace another scenario's, or have done so. One other scenario is enough to look at:
        two could never have come beside full weights."""
        head = await self.heads.head(planned.scenario)
        before = base_weights(head) if head is not None else BASE_CONTENT_ID
        if planned.operation != "creation" and base_weights(planned) == before:
            return
        others = [name for name in await self.heads.scenarios() if name != planned.scenario]
        found = {name: await self.heads.head(name) for name in others[:1]}
        releases.check_alone(
            planned,
            before,
            {name: base_weights(other) for name, other in found.items() if other is not None},
        )

    async def _go_on(self, work: Work, event: CandidateEvaluated | Command) -> None:
        if work.ended:
            log.info("event_repeated", scenario=event.scenario, work=work.work_id, state=work.state)
            return
        await self.publication.run(work)

    async def _head(self, scenario: str) -> Release:
        head = await self.heads.head(scenario)
        if head is None:
            raise Transient(
                f"scenario {scenario!r} does not exist: create it by POST /reef/scenarios, or name it in serve.yaml"
            )
        return head

    async def _published(self, event: CandidateEvaluated) -> bool:
        """Whether the chain holds this candidate already: its work may be forgotten (after a rebuild), the chain is not."""
        candidate = event.candidate
        if any(
            release.candidate_id == candidate.event_id
            for release in await self.heads.chain(event.scenario)
        ):
            return True
        base = await self.heads.release(
            event.scenario, candidate.base_release_id
        )  # an old one: its place in the chain follows from this
        if base is None:
            return False
        release_id = releases.release_id(
            event.scenario, base.sequence + 1, base.release_id, candidate.event_id
        )
        waiting = {release.release_id for release in await self.heads.pending(event.scenario)}
        return (
            release_id not in waiting
            and await self.heads.release(event.scenario, release_id) is not None
        )

    async def _keep_for_review(self, work: Work, release: Release) -> None:
        await self.heads.put_pending(release)
        pending = ReleasePending(
            event_id=work.work_id,
            at=self.now(),
            scenario=work.scenario,
            traceparent=current_traceparent(),
            release=release,
        )
        await self.events.publish(pending, topics.RELEASES)
        await self.works.save(work.to("pending"))
        log.info("release_pending", scenario=work.scenario, release=release.release_id)

    async def _turn_down(self, work: Work, event: Command, turned: Turned) -> None:
        """A pending release whose parent is no longer the head can never be promoted: its candidate ends with the command."""
        pending: list[Release] = []
        if isinstance(event, PromoteRequested) and turned.outcome == "conflicted":
            pending = [
                release
                for release in await self.heads.pending(event.scenario)
                if release.release_id == event.release_id
            ]
        candidate = pending[0].candidate_id if pending else None
        await self.publication.reject(
            work.model_copy(update={"candidate_id": candidate}), turned.outcome, turned.reason
        )
        for release in pending:
            await self.heads.drop_pending(event.scenario, release.release_id)
