"""The states of a work on its way to a release. Each is durable before the next step begins."""

# After a kill, work continues from the state that was saved last. Every step may run twice: a load
# of a loaded adapter, an advance to a release of the chain and an event with the same id repeat.

import asyncio
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

import structlog
from prometheus_client import Counter

from reefcommon import topics
from reefcommon.config_sections import OnStale
from reefcommon.errors import Conflict, Poison, Unavailable
from reefcommon.events import Event, Release, ReleasePublished, ReleaseRejected, ServingSynced
from reefcommon.ids import digest
from reefcommon.kinds import KINDS
from reefcommon.releases import ReleaseHeads, base_weights, may_be_compared
from reefkit.bus import EventPublisher
from reefkit.telemetry import current_traceparent
from services.publisher.domain import releases
from services.publisher.domain.work import NotPublished, Outcome, Work
from services.publisher.fleet import Fleet, LoadedNames
from services.publisher.routing import Routed

log = structlog.get_logger()

ENDED = Counter("reef_publications_total", "pieces of work that ended", ["outcome"])
MAX_REBASES = 10


class Works(Protocol):
    """Durable works. Raises Unavailable if the store does not answer."""

    async def get(self, scenario: str, work_id: str) -> Work | None: ...

    async def save(self, work: Work) -> None:
        """Save this state. Returns once it is durable."""

    async def live(self) -> list[Work]: ...


@dataclass(frozen=True, slots=True)
class WorkRunner:
    """Runs works. Two processes may run the same work at once: their effects are equal."""

    heads: ReleaseHeads
    works: Works
    fleet: Fleet
    events: EventPublisher
    now: Callable[[], datetime]
    on_stale: Callable[[str, str], OnStale]
    resident_adapters: int = 3
    # How long adapters for other base weights stay, until the gateways know the new head.
    drain_s: float = 10.0
    # The deadline of a publication whose nodes, or whose artifact, do not answer.
    within_s: float = 120.0
    routed: Routed = field(init=False)
    _running: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    _residency: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    def __post_init__(self) -> None:
        object.__setattr__(self, "routed", Routed(self.heads, self.fleet))

    async def begin(self, work: Work) -> Work:
        """Save new work before its first effect. Returns the saved work if there is one."""
        async with self._residency[work.scenario]:
            known = await self.works.get(work.scenario, work.work_id)
            if known is not None and known.state != "requeued":
                return known
            work = work.model_copy(update={"began_at": self.now()})
            await self.works.save(work)
        return work

    async def run(self, work: Work) -> Work:
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
                _log(work).info("work_advanced", state=work.state)
                if work.ended:
                    ENDED.labels(work.state).inc()
        self._running.pop(work.work_id, None)
        return work

    async def reject(self, work: Work, outcome: Outcome, reason: str) -> None:
        await self._emit_rejection(work, outcome, reason)
        await self.works.save(work.to(outcome, reason=reason))
        ENDED.labels(outcome).inc()
        _log(work).info("work_rejected", outcome=outcome, reason=reason)

    async def requeue(self, work: Work) -> bool:
        """Have a candidate evaluated again on the new head. Returns whether it may be."""
        candidate, evaluation = work.candidate, work.evaluation
        head = await self.heads.head(work.scenario)
        if candidate is None or evaluation is None or head is None:
            return False
        if evaluation.head_release_id == head.release_id:
            return False  # there is no new head to compare it with
        base = await self.heads.release(work.scenario, candidate.base_release_id)
        on_stale = self.on_stale(work.scenario, candidate.lineage.recipe)
        if not may_be_compared(on_stale, base, head, candidate.kind):
            return False
        # A partner is judged with it again, or alone.
        for each in filter(None, (candidate, work.partner)):
            await self.events.publish(each, topics.CANDIDATES)
        await self.works.save(work.to("requeued"))
        _log(work).info("candidate_requeued")
        return True

    async def tidy(
        self, scenario: str, *, but: str = "", loaded: LoadedNames | None = None
    ) -> None:
        """Unload adapters that are not resident and that no live work (but `but`) will publish."""
        loaded = loaded or await self.fleet.loaded()
        async with self._residency[scenario]:
            kept = await self.kept(scenario, but=but)
            for node in self.fleet.nodes:
                if names := surplus(scenario, loaded[node.url], kept):
                    await self.fleet.unload(node, names)

    async def kept(self, scenario: str, *, but: str = "") -> dict[str, str]:
        """Return the adapters that must stay loaded, with contents, the head's first."""
        # Works are read before the chain: one that moves between the two meanwhile is seen.
        works = [work for work in await self.works.live() if work.scenario == scenario]
        live = [work for work in works if work.work_id != but and work.release]
        chain = await self.chain(scenario)
        planned = [work.planned for work in live]
        routed = [one for each in planned for one in await self.routed.named(each)]
        moved_s = (self.now() - chain[0].created_at).total_seconds() if chain else 0.0
        # Requests may still name an adapter shortly after the base weights have changed.
        drained = chain if moved_s < self.drain_s else []
        kept = releases.resident(chain)
        return kept | releases.adapters_of([*drained, *planned, *routed])

    async def chain(self, scenario: str) -> list[Release]:
        """Return the releases that stay loaded: the newest, then those that the head routes to."""
        chain = await self.heads.chain(scenario, limit=self.resident_adapters)
        routed = await self.routed.named(chain[0]) if chain else []
        there = {release.release_id for release in chain}
        return [*chain, *(one for one in routed if one.release_id not in there)]

    async def bases(self, *, but: str = "") -> frozenset[str]:
        return frozenset(
            base_weights(work.planned)
            for work in await self.works.live()
            # Once the head has moved, the head itself says which weights must be served.
            if work.work_id != but and work.release and work.state in ("evaluated", "staged")
        )

    async def _stage(self, work: Work) -> Work:
        release = work.planned
        nodes: dict[str, float] = {}
        try:
            if KINDS[release.kind].staged:
                await self.fleet.fetch(work.scenario, release.content_id)
            if release.partner is not None:
                await self.fleet.fetch(work.scenario, release.partner.content_id)
            if release.kind == "routing":
                for one in await self.routed.admit(release):
                    await self.fleet.stage(work.scenario, releases.needed(one))
            if releases.needs_nodes(release):
                nodes = await self.fleet.stage(work.scenario, releases.needed(release))
        except Unavailable as error:
            began_at = work.began_at
            if began_at is None or (self.now() - began_at).total_seconds() < self.within_s:
                raise
            reason = f"not published within {self.within_s:g} s: {error}"
            return await self._abandon(work, "aborted", reason)
        except Poison as error:
            return await self._abandon(work, "aborted", str(error))
        return work.to("staged", nodes=nodes)

    async def _advance(self, work: Work) -> Work:
        # It is a link of the chain from now on, however long ago it was planned.
        release = work.planned.model_copy(update={"created_at": self.now()})
        try:
            await self.heads.advance(release)
        except Conflict as error:
            there = await self.heads.release(work.scenario, release.release_id)
            if there is not None and _equal_but_time(there, release):
                return work.to("head_advanced", release=there)
            if work.rebased < MAX_REBASES and (moved := await self._on_new_head(work)) is not None:
                return work.to("staged", release=moved, rebased=work.rebased + 1)
            if await self.requeue(work):
                await self._clean(work)
                return work.to("requeued")
            return await self._abandon(work, "conflicted", str(error))
        return work.to("head_advanced", release=release)

    async def promoted(
        self, head: Release, pending: Release, at: datetime, reason: str = ""
    ) -> Release:
        """Return a pending release as it goes live. Raises NotPublished if its kind has moved."""
        parent = await self.heads.release(pending.scenario, pending.parent_id or "")
        return releases.promoted(head, parent, pending, at, reason)

    async def _on_new_head(self, work: Work) -> Release | None:
        """Return the release of a command that lost a race; None if it cannot follow."""
        head, planned = await self.heads.head(work.scenario), work.planned
        if work.only_on:
            return None
        if head is not None and planned.operation == "rollback":
            return releases.rebased(planned, head, f"{work.work_id}:{work.rebased + 1}")
        if head is not None and planned.operation == "promote":
            with suppress(NotPublished):
                return await self.promoted(head, planned, planned.created_at)
        return None

    async def _announce(self, work: Work) -> Work:
        release = work.planned
        # If the heads were rebuilt from a log without this release, it is added again.
        await self.heads.advance(release)
        said = {"release": release, "command_id": work.command_id}
        await self.emit(ReleasePublished, release.release_id, work.scenario, **said)
        for node, duration_ms in work.nodes.items():
            await self.synced(release, node, duration_ms)
        await self.heads.drop_pending(work.scenario, release.release_id)
        return work.to("announced")

    async def _retire(self, work: Work) -> Work:
        if releases.needs_nodes(work.planned):
            await self.tidy(work.scenario)
        return work.to("retired")

    async def synced(self, release: Release, node: str, duration_ms: float) -> None:
        event_id = "syn-" + digest("synced", release.scenario, release.release_id, node)
        held = {name: getattr(release, name) for name in ("release_id", "load_id", "adapter")}
        served = {"node": node, "duration_ms": duration_ms}
        await self.emit(ServingSynced, event_id, release.scenario, **held, **served)

    async def _abandon(self, work: Work, outcome: Outcome, reason: str) -> Work:
        _log(work).error("release_abandoned", outcome=outcome, reason=reason)
        await self._clean(work)
        await self._emit_rejection(work, outcome, reason)
        return work.to(outcome, reason=reason)

    async def _clean(self, work: Work) -> None:
        await self.tidy(work.scenario, but=work.work_id)
        head = await self.heads.head(work.scenario)
        if head is not None:
            others = await self.bases(but=work.work_id)
            await self.fleet.restore(work.scenario, base_weights(head), others)

    async def _emit_rejection(self, work: Work, outcome: Outcome, reason: str) -> None:
        event_id = "rej-" + digest("rejected", work.scenario, work.work_id)
        about = {name: getattr(work, name) for name in ("candidate_id", "command_id", "evaluation")}
        said = {"outcome": outcome, "reason": reason}
        await self.emit(ReleaseRejected, event_id, work.scenario, **said, **about)
        if (partner := work.partner) is not None:
            event_id = "rej-" + digest("rejected", work.scenario, partner.event_id)
            about["candidate_id"] = partner.event_id
            await self.emit(ReleaseRejected, event_id, work.scenario, **said, **about)

    async def emit(self, kind: type[Event], event_id: str, scenario: str, **fields: Any) -> None:
        """Publish an event of the release log."""
        values = {"event_id": event_id, "scenario": scenario, "at": self.now(), **fields}
        event = kind.model_validate({"traceparent": current_traceparent(), **values})
        await self.events.publish(event, topics.RELEASES)


def _log(work: Work) -> Any:
    release = work.release.release_id if work.release is not None else None
    return log.bind(scenario=work.scenario, work=work.work_id, release=release)


def _equal_but_time(stored: Release, release: Release) -> bool:
    return stored == release.model_copy(update={"created_at": stored.created_at})


def surplus(scenario: str, names: set[str] | Unavailable, kept: Mapping[str, str]) -> list[str]:
    """Return the served releases of a scenario that need not stay loaded."""
    if isinstance(names, Unavailable):
        return []
    release = re.compile(rf"{re.escape(scenario)}@r\d+-[^@]*")
    return sorted(name for name in names - kept.keys() if release.fullmatch(name))
