"""The arrivals of a job host, its state for `/status`, and the composition of its loops."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from faststream.kafka import KafkaRouter

from reefcommon import topics
from reefcommon.events import Publication, ReleasePublished, SampleReady
from reefcommon.releases import ReleaseHeads
from reefcommon.settings import HostSettings
from reefkit.artifacts.cache import FetchedTrees
from reefkit.bus import route
from reefkit.jobs.loop import HostLoop
from reefkit.jobs.model import candidate_in
from reefkit.jobs.store import JobStore
from reefkit.rejected_contents import RejectedContents
from reefkit.retention import record_removed


@dataclass(frozen=True, slots=True)
class Handlers:
    """The arrivals. Each returns when its effect is on disk."""

    loops: tuple[HostLoop, ...]
    store: JobStore

    async def on_sample(self, event: SampleReady) -> None:
        for loop in self._of(event.scenario):
            await loop.put(event)

    async def on_publication(self, event: Publication) -> None:
        """Keep the new head, then the verdict on a candidate of this host."""
        loops = self._of(event.scenario)
        if not loops:
            return
        # The head first: a loop that sees the verdict must see the head that it made.
        if isinstance(event, ReleasePublished):
            await asyncio.to_thread(self.store.advance, event.release)
        if (candidate := candidate_in(event)) is not None:
            job = await asyncio.to_thread(self.store.of_candidate, candidate)
            for loop in loops:
                if job is not None and loop.binding.key == job.binding:
                    await loop.judge(job, event)
        for loop in loops:
            loop.arrived.set()

    def facts(self) -> dict[str, Any]:
        return {loop.binding.key: loop.facts() for loop in self.loops}

    async def check(self) -> str | None:
        states = [(loop.binding.key, loop.shown.failing) for loop in self.loops]
        return "; ".join(f"{key}: {failing}" for key, failing in states if failing) or None

    def _of(self, scenario: str) -> list[HostLoop]:
        return [loop for loop in self.loops if loop.binding.scenario == scenario]


def routes(handlers: Handlers, service: str) -> KafkaRouter:
    return KafkaRouter(
        handlers=(
            route(handlers.on_publication, topics.RELEASES, group=f"{service}-releases"),
            route(handlers.on_sample, topics.SAMPLES, group=f"{service}-samples"),
        )
    )


async def seed(handlers: Handlers, heads: ReleaseHeads) -> None:
    """Take over the present heads before the release chain is read. Raises Unavailable."""
    for scenario in {loop.binding.scenario for loop in handlers.loops}:
        if (release := await heads.head(scenario)) is not None:
            await asyncio.to_thread(handlers.store.advance, release)


@dataclass(frozen=True, slots=True)
class Retention:
    """Removes old samples, jobs, contents and fetched trees."""

    service: str
    handlers: Handlers
    trees: FetchedTrees
    rejected: RejectedContents
    settings: HostSettings
    clock: Callable[[], datetime]

    async def round(self) -> dict[str, int]:
        """Return the number of removals by kind. Raises Unavailable."""
        now, loops = self.clock(), self.handlers.loops
        counts = Counter(trees=0, contents=0, samples=0, jobs=0)
        counts["trees"] = await asyncio.to_thread(self.trees.prune, self.contents_in_use)
        before = now - timedelta(seconds=self.settings.settled_kept_s)
        for loop in loops:
            counts.update(await asyncio.to_thread(self._forget, loop, before))
        try:
            limit = now - timedelta(seconds=self.settings.rejected_kept_s)
            for scenario in {loop.binding.scenario for loop in loops}:
                counts["contents"] += await self.rejected.drop(scenario, limit)
        finally:
            record_removed(self.service, counts)
        return dict(counts)

    def _forget(self, loop: HostLoop, before: datetime) -> dict[str, int]:
        kept, shown = loop.executor.kept_jobs(), loop.executor.shown_rejections
        before_ms = int(before.timestamp() * 1000)
        return self.handlers.store.forget(loop.binding.key, before_ms, kept, shown)

    def contents_in_use(self) -> set[str]:
        """Return the contents that jobs start from, now or next. Blocks."""
        store, used = self.handlers.store, set[str]()
        for loop in self.handlers.loops:
            job = store.current(loop.binding.key, pending=True)
            used |= loop.executor.contents_in_use(job, store.head(loop.binding.scenario))
        return used
