"""The state machine: a piece of work goes from state to state, and each state is durable before the next step begins.

Killed anywhere, it goes on from the state that was saved last. Every step may run twice: a load of what is loaded, an advance to
what is in the chain and an event with the same id are repeats.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

import structlog
from prometheus_client import Counter

from reefcommon import topics
from reefcommon.errors import Conflict, Poison
from reefcommon.events import ReleasePublished, ReleaseRejected, ServingSynced
from reefcommon.ids import digest
from reefcommon.releases import ReleaseHeads, base_weights
from reefkit.bus import EventPublisher
from reefkit.telemetry import current_traceparent
from services.publisher.domain.releases import (
    adapter_of,
    lingering,
    needs_nodes,
    rebased,
    resident,
    wanted,
)
from services.publisher.domain.work import Outcome, Work, rejection_fields
from services.publisher.fleet import Fleet, Loaded

log = structlog.get_logger()

ENDED = Counter("reef_publications_total", "pieces of work that ended, by how", ["outcome"])
MAX_REBASES = 10


class Works(Protocol):
    """Where works are durable. Raises Unavailable where the store does not answer."""

    async def get(self, scenario: str, work_id: str) -> Work | None:
        """One piece of work, if it is known."""

    async def save(self, work: Work) -> None:
        """Returns once this state is durable."""

    async def live(self) -> list[Work]:
        """Every piece of work that has not ended."""


@dataclass(frozen=True, slots=True)
class Publication:
    """Runs works. One process runs one piece of work at a time once; two processes may run it at once and do the same."""

    heads: ReleaseHeads
    works: Works
    fleet: Fleet
    events: EventPublisher
    now: Callable[[], datetime]
    resident_adapters: int = 3
    drain_s: float = 10.0
    """How long adapters stay that were made for other base weights than the new head's: gateways hear of it a moment later."""
    _running: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    _residency: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def begin(self, work: Work) -> Work:
        """Make a new piece of work durable before its first effect; where it is known already, that is what counts.

        From here on no tidying unloads its adapter.
        """
        async with self._residency[work.scenario]:
            known = await self.works.get(work.scenario, work.work_id)
            if known is None:
                await self.works.save(work)
        return known or work

    async def run(self, work: Work) -> Work:
        """From the state that it is in to its end."""
        steps = {
            "evaluated": self._stage,
            "staged": self._advance,
            "head_advanced": self._announce,
            "announced": self._retire,
        }
        async with self._running[work.work_id]:
            work = await self.works.get(work.scenario, work.work_id) or work
            while not work.ended:
                work = await steps[work.state](work)
                await self.works.save(work)
                log.info(
                    "work_advanced",
                    scenario=work.scenario,
                    work=work.work_id,
                    state=work.state,
                    release=work.planned.release_id,
                )
                if work.ended:
                    ENDED.labels(work.state).inc()
        self._running.pop(work.work_id, None)
        return work

    async def reject(self, work: Work, outcome: Outcome, reason: str) -> Work:
        """Tell that this came to nothing, then make that durable."""
        await self._emit_rejection(work, outcome, reason)
        ended = work.to(outcome, reason=reason)
        await self.works.save(ended)
        ENDED.labels(outcome).inc()
        log.info(
            "work_rejected",
            scenario=work.scenario,
            work=work.work_id,
            outcome=outcome,
            reason=reason,
        )
        return ended

    async def tidy(self, scenario: str, *, but: str = "", loaded: Loaded | None = None) -> None:
        """Unload what is no longer resident on any node, and what no live piece of work (other than `but`) is about to publish."""
        loaded = loaded or await self.fleet.loaded()
        async with self._residency[scenario]:
            kept = await self.kept(scenario, but=but)
            for node in self.fleet.nodes:
                names = loaded[node.url]
                if isinstance(names, set):
                    await self.fleet.unload(
                        node,
                        sorted(
                            name for name in names - kept.keys() if is_release_of(scenario, name)
                        ),
                    )

    async def kept(self, scenario: str, *, but: str = "") -> dict[str, str]:
        """Adapters that must stay on the nodes, with their contents, the head's first. Works are read before the chain, so that
        one that moves from the former to the latter meanwhile is seen."""
        live = [
            work
            for work in await self.works.live()
            if work.scenario == scenario and work.work_id != but and work.release
        ]
        chain = await self.heads.chain(scenario, limit=self.resident_adapters)
        moved_s = (self.now() - chain[0].created_at).total_seconds() if chain else 0.0
        drained = {} if moved_s >= self.drain_s else lingering(chain, self.resident_adapters)
        planned = {
            name: content for work in live for name, content in adapter_of(work.planned).items()
        }
        return {**resident(chain, self.resident_adapters), **drained, **planned}

    async def bases(self, *, but: str = "") -> frozenset[str]:
        """Base weights that nodes may serve because a live piece of work (other than `but`) is about to publish them."""
        live = await self.works.live()
        return frozenset(
            base_weights(work.planned)
            for work in live
            if work.work_id != but and work.release and not published(work)
        )

    async def _stage(self, work: Work) -> Work:
        release = work.planned
        nodes: dict[str, float] = {}
        try:
            if release.kind not in (
                "base",
                "checkpoint",
            ):  # full weights may be large: staging reads them where a node needs them
                await self.fleet.fetch(work.scenario, release.content_id)
            if needs_nodes(release):
                nodes = await self.fleet.stage(work.scenario, wanted(release))
        except Poison as error:
            log.error(
                "release_not_staged",
                scenario=work.scenario,
                release=release.release_id,
                reason=str(error),
            )
            return await self._abandon(work, "aborted", str(error))
        return work.to("staged", nodes=nodes)

    async def _advance(self, work: Work) -> Work:
        """It is a link of the chain from now on, however long ago it was planned; what an interrupted run made of it keeps its time."""
        release = work.planned.model_copy(update={"created_at": self.now()})
        try:
            await self.heads.advance(release)
        except Conflict as error:
            there = await self.heads.release(work.scenario, release.release_id)
            if there is not None and there == release.model_copy(
                update={"created_at": there.created_at}
            ):
                return work.to("head_advanced", release=there)
            head = await self.heads.head(work.scenario)
            if (
                work.planned.operation == "rollback"
                and head is not None
                and work.rebased < MAX_REBASES
            ):
                moved = rebased(work.planned, head, f"{work.work_id}:{work.rebased + 1}")
                return work.to("staged", release=moved, rebased=work.rebased + 1)
            return await self._abandon(work, "conflicted", str(error))
        return work.to("head_advanced", release=release)

    async def _announce(self, work: Work) -> Work:
        release = work.planned
        await self.events.publish(
            ReleasePublished(
                event_id=release.release_id,
                at=self.now(),
                scenario=work.scenario,
                traceparent=current_traceparent(),
                release=release,
                command_id=work.command_id,
            ),
            topics.RELEASES,
        )
        for node, duration_ms in work.nodes.items():
            await self.synced(
                work.scenario,
                release.release_id,
                release.load_id,
                node,
                release.adapter,
                duration_ms,
            )
        await self.heads.drop_pending(work.scenario, release.release_id)
        return work.to("announced")

    async def _retire(self, work: Work) -> Work:
        if needs_nodes(work.planned):
            await self.tidy(work.scenario)
        return work.to("retired")

    async def synced(
        self,
        scenario: str,
        release_id: str,
        load_id: str,
        node: str,
        adapter: str | None,
        duration_ms: float,
    ) -> None:
        """Tell that a node holds a release."""
        event = ServingSynced(
            event_id="syn-" + digest("synced", scenario, release_id, node),
            at=self.now(),
            scenario=scenario,
            release_id=release_id,
            load_id=load_id,
            node=node,
            adapter=adapter,
            duration_ms=duration_ms,
        )
        await self.events.publish(event, topics.RELEASES)

    async def _abandon(self, work: Work, outcome: Outcome, reason: str) -> Work:
        """Leave nothing behind: what was staged for this work alone is unloaded, and base weights are put back, before anybody is told."""
        await self.tidy(work.scenario, but=work.work_id)
        head = await self.heads.head(work.scenario)
        if head is not None:
            await self.fleet.restore(
                work.scenario, base_weights(head), await self.bases(but=work.work_id)
            )
        await self._emit_rejection(work, outcome, reason)
        return work.to(outcome, reason=reason)

    async def _emit_rejection(self, work: Work, outcome: Outcome, reason: str) -> None:
        event = ReleaseRejected.model_validate(
            {
                "event_id": "rej-" + digest("rejected", work.scenario, work.work_id),
                "at": self.now(),
                "scenario": work.scenario,
                "traceparent": current_traceparent(),
                **rejection_fields(work, outcome, reason),
            }
        )
        await self.events.publish(event, topics.RELEASES)


def published(work: Work) -> bool:
    """Whether the head has moved for this work: from then on the head itself says what must be served."""
    return work.state in ("head_advanced", "announced")


def is_release_of(scenario: str, adapter: str) -> bool:
    """Whether a served name is one of this scenario's releases: names of the evaluator and of others are left alone."""
    head, at, release_id = adapter.rpartition("@")
    sequence, dash, _ = release_id.partition("-")
    return (
        bool(at)
        and bool(dash)
        and head == scenario
        and sequence[:1] == "r"
        and sequence[1:].isdigit()
    )
