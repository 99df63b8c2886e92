"""Contents of candidates that came to nothing: dropped from the artifact store when they were kept long enough and nothing is made of them.

Kept are the contents of other jobs, which may be under evaluation, and those that a release names, or one that waits for a person.
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
class Lost:
    """A job whose candidate came to nothing, the content of that candidate, and when it was made."""

    job_id: str
    content: str
    made_at: datetime


class Losses(Protocol):
    """What a service's ledger knows of its candidates. The calls block on the disk."""

    def lost(self, scenario: str) -> list[Lost]:
        """Candidates that came to nothing and whose contents were not dropped yet."""

    def contents_in_use(self, scenario: str) -> set[str]:
        """The contents of all other candidates."""

    def drop(self, job_ids: Collection[str]) -> None:
        """The contents of these jobs are gone."""

    def head(self, scenario: str) -> Release | None:
        """The newest release that this service has heard of."""


@dataclass(frozen=True, slots=True)
class Rejected:
    """Drops what is no longer of use to one service. `storing`: held by whoever stores a content until its ledger says that it is used,
    since a content that was rejected may be made again."""

    ledger: Losses
    artifacts: ArtifactStore
    heads: ReleaseHeads
    storing: asyncio.Lock

    async def drop(self, scenario: str, before: datetime) -> int:
        """Drop contents that were made before that time. Returns how many. Raises Unavailable where it cannot be known what is named."""
        lost = await asyncio.to_thread(self.ledger.lost, scenario)
        if all(one.made_at >= before for one in lost):
            return 0
        async with self.storing:
            held = await asyncio.to_thread(
                self.ledger.contents_in_use, scenario
            ) | await self._named(scenario)
            held |= {one.content for one in lost if one.made_at >= before}
            gone = [one for one in lost if one.content not in held]
            contents = sorted({one.content for one in gone})
            if contents:
                await asyncio.to_thread(self.artifacts.drop, contents, scenario)
                await asyncio.to_thread(self.ledger.drop, [one.job_id for one in gone])
        return len(contents)

    async def _named(self, scenario: str) -> set[str]:
        """Every content that a release of the chain, or one that waits for a person, names."""
        waiting = await self.heads.pending(
            scenario
        )  # first: who is promoted comes into the chain before it stops waiting
        chain = await self.heads.chain(scenario, limit=WHOLE_CHAIN)
        known = await asyncio.to_thread(self.ledger.head, scenario)
        if not chain or (known is not None and chain[0].sequence < known.sequence):
            raise Unavailable(
                f"the chain of {scenario!r} is not whole: the publisher rebuilds it; nothing is dropped until then"
            )
        return {
            content
            for release in (*chain, *waiting)
            for content in (release.content_id, *release.contents.values())
        }
