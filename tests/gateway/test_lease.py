"""The right to do the work of a key, by the clock of the event loop and by the key_store: in doubt nothing is written under it."""

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


def lease_of(key_store: MemoryKeyStore, *, left_s: float, seconds: float = 30.0) -> Lease:
    return Lease(key_store, "k", OURS, seconds, asyncio.get_running_loop().time() + left_s)


async def test_in_its_time_nobody_is_asked() -> None:
    key_store = MemoryKeyStore()
    key_store.entries["k"] = THEIRS.encode()
    assert await lease_of(key_store, left_s=30).held()


@pytest.mark.parametrize(
    ("found", "away", "held"),
    [(OURS, False, True), (THEIRS, False, False), (None, False, True), (THEIRS, True, True)],
    ids=str,
)
async def test_after_a_long_halt_the_key_store_says_whose_it_is(
    found: KeyEntry | None, away: bool, held: bool
) -> None:
    """Where nobody has it, it is taken first; while the key_store is away nobody can have taken it."""
    key_store = MemoryKeyStore()
    if found is not None:
        key_store.entries["k"] = found.encode()
    key_store.away = away
    assert await lease_of(key_store, left_s=-1).held() is held
    key_store.away = False
    assert await key_store.find("k") == (found or OURS)


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


async def kept(lease: Lease, key_store: Renewed, renewals: int) -> None:
    """Until so many renewals have ended, or it has given up."""
    keeping = asyncio.create_task(lease.keep())
    async with asyncio.timeout(60):
        while len(key_store.began) <= renewals and not keeping.done():
            await asyncio.sleep(0.001)
    keeping.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await keeping


async def test_a_renewal_counts_from_when_it_was_sent() -> None:
    """The key_store's time begins somewhere between sending and answer; and one that fails does not end the others."""
    key_store = Renewed(failures=1)
    lease = lease_of(key_store, left_s=30, seconds=0.003)
    await kept(lease, key_store, 2)
    assert key_store.began[1] - 0.001 <= lease.until - 0.003 <= key_store.began[1]


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
    key_store = MemoryKeyStore()
    lease = lease_of(key_store, left_s=30)
    await lease.give_up(unrecorded=unrecorded)
    assert key_store.entries == {}
    key_store.entries["k"] = THEIRS.encode()
    await lease.give_up(unrecorded=unrecorded)
    assert key_store.entries["k"] == THEIRS.encode()
    key_store.entries["k"] = OURS.encode()
    await lease.give_up(unrecorded=unrecorded)
    entry = KeyEntry.decode(key_store.entries["k"])
    assert entry == replace(OURS, state="free" if unrecorded else "unsure", ended_at=entry.ended_at)
    assert time.time() - 60 < entry.ended_at <= time.time()
    key_store.away = True
    await lease.give_up(unrecorded=unrecorded)
