"""Drops the contents of lost candidates from the artifact store after a while.

The contents of other jobs and of all releases, pending or published, are kept.
"""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from reefcommon.artifacts import ArtifactStore
from reefcommon.errors import Unavailable
from reefcommon.events import Release
from reefcommon.releases import ReleaseHeads

WHOLE_CHAIN = 1_000_000


@dataclass(frozen=True, slots=True)
class LostContent:
    job_id: str
    content: str
    made_at: datetime


class Losses(Protocol):
    """The candidates of a host. All calls block on the disk."""

    def lost(self, scenario: str) -> list[LostContent]:
        """Return lost candidates whose contents are still stored."""

    def contents_in_use(self, scenario: str) -> set[str]:
        """Return the contents of other candidates."""

    def drop(self, job_ids: Collection[str]) -> None:
        """Note that the contents of these jobs are gone."""

    def head(self, scenario: str) -> Release | None:
        """Return the newest known release."""


@dataclass(frozen=True, slots=True)
class RejectedContents:
    """Drops the lost contents of a host.

    `storing` is held from storing a content until the job store has it: it may be made again.
    """

    store: Losses
    artifacts: ArtifactStore
    heads: ReleaseHeads
    storing: asyncio.Lock

    async def drop(self, scenario: str, before: datetime) -> int:
        """Drop contents made before a time, and return their number.

        Raises:
            Unavailable: the heads do not answer, or their chain is not whole.
        """
        lost = await asyncio.to_thread(self.store.lost, scenario)
        if all(item.made_at >= before for item in lost):
            return 0
        async with self.storing:
            in_use = await asyncio.to_thread(self.store.contents_in_use, scenario)
            kept = in_use | await self._named(scenario)
            kept |= {item.content for item in lost if item.made_at >= before}
            gone = [item for item in lost if item.content not in kept]
            contents = sorted({item.content for item in gone})
            if contents:
                await asyncio.to_thread(self.artifacts.drop, contents, scenario)
                await asyncio.to_thread(self.store.drop, [item.job_id for item in gone])
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
