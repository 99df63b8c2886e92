"""Retention of a host: old samples and jobs, contents of lost candidates, fetched trees."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from reefcommon.artifacts import ArtifactStore
from reefcommon.errors import Unavailable
from reefcommon.releases import ReleaseHeads
from reefcommon.settings import HostSettings
from reefkit.artifacts.cache import FetchedTrees
from reefkit.jobs.loop import HostLoop
from reefkit.jobs.store import JobStore
from reefkit.retention import record_removed

WHOLE_CHAIN = 1_000_000


@dataclass(frozen=True, slots=True)
class RejectedContents:
    """Drops the contents of lost candidates from the artifact store after a while.

    The contents of other jobs and of all releases, pending or published, are kept. `storing` is
    held from storing a content until the job store has it: it may be made again.
    """

    store: JobStore
    artifacts: ArtifactStore
    heads: ReleaseHeads
    storing: asyncio.Lock

    async def drop(self, scenario: str, before: datetime) -> int:
        """Drop contents made before a time, and return their number.

        Raises:
            Unavailable: the heads do not answer, or their chain is not whole.
        """
        lost = await asyncio.to_thread(self.store.lost, scenario)
        old = [job for job in lost if job.made_at < before]
        if not old:
            return 0
        async with self.storing:
            kept = await asyncio.to_thread(self.store.contents_in_use, scenario)
            kept |= await self._named(scenario)
            kept |= {str(job.content_id) for job in lost if job.made_at >= before}
            gone = {job.job_id: str(job.content_id) for job in old if job.content_id not in kept}
            contents = sorted(set(gone.values()))
            if contents:
                await asyncio.to_thread(self.artifacts.drop, contents, scenario)
                await asyncio.to_thread(self.store.drop, gone)
        return len(contents)

    async def _named(self, scenario: str) -> set[str]:
        # Pending releases first: a promoted one joins the chain before it stops waiting.
        waiting = await self.heads.pending(scenario)
        chain = await self.heads.chain(scenario, limit=WHOLE_CHAIN)
        known = await asyncio.to_thread(self.store.head, scenario)
        if not chain or (known is not None and chain[0].sequence < known.sequence):
            raise Unavailable(
                f"the chain of {scenario!r} is not whole: the publisher rebuilds it; nothing is"
                " dropped until then"
            )
        return {
            content
            for release in (*chain, *waiting)
            for content in (release.content_id, *release.contents.values())
        }


@dataclass(frozen=True, slots=True)
class Retention:
    """The rounds of a host."""

    service: str
    loops: tuple[HostLoop, ...]
    trees: FetchedTrees
    rejected: RejectedContents
    settings: HostSettings
    clock: Callable[[], datetime]

    async def round(self) -> dict[str, int]:
        """Return the number of removals by kind. Raises Unavailable."""
        now = self.clock()
        counts = Counter(trees=0, contents=0, samples=0, jobs=0)
        counts["trees"] = await asyncio.to_thread(self.trees.prune, self.contents_in_use)
        before = now - timedelta(seconds=self.settings.settled_kept_s)
        for loop in self.loops:
            counts.update(await asyncio.to_thread(loop.forget, before))
        try:
            limit = now - timedelta(seconds=self.settings.rejected_kept_s)
            for scenario in {loop.binding.scenario for loop in self.loops}:
                counts["contents"] += await self.rejected.drop(scenario, limit)
        finally:
            record_removed(self.service, counts)
        return dict(counts)

    def contents_in_use(self) -> set[str]:
        """Return the contents that jobs start from, now or next. Blocks."""
        return {content for loop in self.loops for content in loop.contents_in_use()}
