"""What came to nothing is dropped, and nothing else is: in doubt it stays."""

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from reefcommon.errors import Unavailable
from reefcommon.events import Release
from reefkit.jobs.model import Job
from reefkit.jobs.retention import RejectedContents

NOW = datetime(2026, 1, 8, tzinfo=UTC)
OLD, YOUNG = NOW - timedelta(days=9), NOW - timedelta(days=1)
BEFORE = NOW - timedelta(days=7)


def release(sequence: int, content: str) -> Release:
    return Release(
        release_id=f"r{sequence}",
        scenario="default",
        sequence=sequence,
        parent_id=None,
        kind="lora",
        content_id=content,
        contents={"base": "base", "lora": content},
        operation="training",
        load_id=f"run:{sequence}",
        created_at=NOW,
    )


@dataclass
class Ledger:
    """The lost candidates of a job store, in memory."""

    rejected: list[Job]
    used: set[str] = field(default_factory=set)
    known: Release | None = None
    gone: list[str] = field(default_factory=list)

    def lost(self, scenario: str) -> list[Job]:
        return [one for one in self.rejected if one.job_id not in self.gone]

    def contents_in_use(self, scenario: str) -> set[str]:
        return set(self.used)

    def drop(self, job_ids: Collection[str]) -> None:
        self.gone += job_ids

    def head(self, scenario: str) -> Release | None:
        return self.known


@dataclass
class Outside:
    """The chain, what waits for a person, and the store. `promoting`: a person says yes between two looks."""

    releases: list[Release]
    waiting: list[Release] = field(default_factory=list)
    promoting: bool = False
    dropped: list[str] = field(default_factory=list)
    away: bool = False

    async def chain(self, scenario: str, *, limit: int = 100) -> list[Release]:
        found = self.releases[:limit]
        self._promote()
        return found

    async def pending(self, scenario: str) -> list[Release]:
        found = list(self.waiting)
        self._promote()
        return found

    def _promote(self) -> None:
        if self.promoting:
            self.releases, self.waiting = [*self.waiting, *self.releases], []

    def drop(self, contents: list[str], scenario: str) -> None:
        if self.away:
            raise Unavailable("away, as asked")
        self.dropped += contents


def rejected(ledger: Ledger, outside: Outside) -> RejectedContents:
    return RejectedContents(ledger, outside, outside, asyncio.Lock())  # type: ignore[arg-type]


def lost(*found: tuple[str, datetime]) -> Ledger:
    return Ledger([job(number, content, at) for number, (content, at) in enumerate(found)])


def job(number: int, content: str, at: datetime) -> Job:
    base = ("here", "default", "r0", "run:0", "base", ())
    return Job(f"job-{number}", *base, at, number, state="rejected", content_id=content)


async def test_what_is_old_and_named_by_nobody_goes() -> None:
    """Not what another job, a release, one that waits, or a younger candidate has as well: a content may be made twice."""
    ledger = lost(
        ("a", OLD),
        ("b", OLD),
        ("served", OLD),
        ("waits", OLD),
        ("used", OLD),
        ("b", YOUNG),
        ("c", YOUNG),
    )
    ledger.used = {"used"}
    outside = Outside([release(1, "served")], [release(2, "waits")])
    assert await rejected(ledger, outside).drop("default", BEFORE) == 1
    assert (outside.dropped, ledger.gone) == (["a"], ["job-0"])


@pytest.mark.parametrize("left", [[], [release(4, "x")]], ids=["nothing", "its beginning"])
async def test_a_chain_that_is_not_whole_says_nothing(left: list[Release]) -> None:
    """Redis was emptied and is being rebuilt: what is missing may name the content."""
    ledger, outside = lost(("a", OLD)), Outside(left)
    ledger.known = release(5, "a")
    with pytest.raises(Unavailable, match="not whole"):
        await rejected(ledger, outside).drop("default", BEFORE)
    assert (outside.dropped, ledger.gone) == ([], [])
    outside.releases = [release(5, "y"), *left]
    assert await rejected(ledger, outside).drop("default", BEFORE) == 1


async def test_what_is_promoted_meanwhile_stays() -> None:
    ledger, outside = (
        lost(("a", OLD)),
        Outside([release(1, "x")], [release(2, "a")], promoting=True),
    )
    assert await rejected(ledger, outside).drop("default", BEFORE) == 0
    assert outside.dropped == []


async def test_a_store_that_is_away_is_asked_again() -> None:
    ledger, outside = lost(("a", OLD)), Outside([release(1, "x")], away=True)
    with pytest.raises(Unavailable):
        await rejected(ledger, outside).drop("default", BEFORE)
    assert ledger.gone == []
    outside.away = False
    assert await rejected(ledger, outside).drop("default", BEFORE) == 1
    assert await rejected(ledger, outside).drop("default", BEFORE) == 0


async def test_a_content_that_is_being_stored_is_waited_for() -> None:
    """It may be one that was rejected before; its ledger says so when it is there."""
    ledger, outside = lost(("a", OLD)), Outside([release(1, "x")])
    one = rejected(ledger, outside)
    async with one.storing:
        dropping = asyncio.create_task(one.drop("default", BEFORE))
        await asyncio.sleep(0.05)
        ledger.used = {"a"}
    assert await dropping == 0
    assert outside.dropped == []
