"""The right to do the work of a key, by the clock of the event loop and by the ledger: in doubt nothing is written under it."""

import asyncio
import contextlib
import time
from dataclasses import replace

import pytest

from reefcommon.errors import Unavailable
from services.gateway.domain.keys import KeyEntry
from services.gateway.keys.lease import Lease

from .fakes import MemoryKeyStore

OURS = KeyEntry(digest="d", kind="inference", scenario="default", shard="s0", owner="ours")
THEIRS = replace(OURS, owner="theirs")


def lease_of(ledger: MemoryKeyStore, *, left_s: float, seconds: float = 30.0) -> Lease:
    return Lease(ledger, "k", OURS, seconds, asyncio.get_running_loop().time() + left_s)


async def test_in_its_time_nobody_is_asked() -> None:
    ledger = MemoryKeyStore()
    ledger.entries["k"] = THEIRS.encode()
    assert await lease_of(ledger, left_s=30).held()


@pytest.mark.parametrize(
    ("found", "away", "held"),
    [(OURS, False, True), (THEIRS, False, False), (None, False, True), (THEIRS, True, True)],
    ids=str,
)
async def test_after_a_long_halt_the_ledger_says_whose_it_is(
    found: KeyEntry | None, away: bool, held: bool
) -> None:
    """Where nobody has it, it is taken first; while the ledger is away nobody can have taken it."""
    ledger = MemoryKeyStore()
    if found is not None:
        ledger.entries["k"] = found.encode()
    ledger.away = away
    assert await lease_of(ledger, left_s=-1).held() is held
    ledger.away = False
    assert await ledger.find("k") == (found or OURS)


class Renewed(MemoryKeyStore):
    """Each renewal takes a while; the first `failures` of them come to nothing."""

    def __init__(self, failures: int = 0) -> None:
        super().__init__()
        self.failures = failures
        self.began: list[float] = []

    async def renew(self, key: str, entry: KeyEntry, *, lease_s: float) -> bool:
        self.began.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.05)
        if len(self.began) <= self.failures:
            raise Unavailable("away, as asked")
        return await super().renew(key, entry, lease_s=lease_s)


async def kept(lease: Lease, ledger: Renewed, renewals: int) -> None:
    """Until so many renewals have ended."""
    keeping = asyncio.create_task(lease.keep())
    async with asyncio.timeout(60):
        while len(ledger.began) <= renewals:
            await asyncio.sleep(0.001)
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping


async def test_a_renewal_counts_from_when_it_was_sent() -> None:
    """The ledger's time begins somewhere between sending and answer; and one that fails does not end the others."""
    ledger = Renewed(failures=1)
    lease = lease_of(ledger, left_s=30, seconds=0.003)
    await kept(lease, ledger, 2)
    assert ledger.began[1] - 0.001 <= lease.until - 0.003 <= ledger.began[1]


@pytest.mark.parametrize("taken", [True, False])
async def test_a_late_renewal_holds_only_what_is_not_anothers(taken: bool) -> None:
    store = Renewed()
    store.entries["k"] = (THEIRS if taken else OURS).encode()
    lease = lease_of(store, left_s=-1, seconds=0.003)
    before = lease.until
    await kept(lease, store, 2)
    assert (lease.until == before) is taken


@pytest.mark.parametrize("unrecorded", [True, False])
async def test_what_is_given_up_is_ones_own(unrecorded: bool) -> None:
    """Free if no event was written under it, else unsure; another's stays as it is."""
    ledger = MemoryKeyStore()
    lease = lease_of(ledger, left_s=30)
    await lease.give_up(unrecorded=unrecorded)
    assert ledger.entries == {}
    ledger.entries["k"] = THEIRS.encode()
    await lease.give_up(unrecorded=unrecorded)
    assert ledger.entries["k"] == THEIRS.encode()
    ledger.entries["k"] = OURS.encode()
    await lease.give_up(unrecorded=unrecorded)
    entry = KeyEntry.decode(ledger.entries["k"])
    assert entry == replace(OURS, state="free" if unrecorded else "unsure", ended_at=entry.ended_at)
    assert time.time() - 60 < entry.ended_at <= time.time()
    ledger.away = True
    await lease.give_up(unrecorded=unrecorded)
