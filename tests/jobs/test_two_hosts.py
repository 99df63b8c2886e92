"""Two hosts of one service: one stands by, takes over, and the replaced one writes nothing more."""

import asyncio
import os
from contextlib import suppress
from types import SimpleNamespace

import pytest
from redis.asyncio import Redis

from reefcommon.errors import Unavailable
from reefkit.redis_lease import LeaseLost, RedisLease
from tests.jobs.rig import WordsRig
from tests.trainer.rig import Bus, Mortal

pytestmark = pytest.mark.redis
TTL_S = 0.3


@pytest.fixture
async def redis(redis_url):
    client = Redis.from_url(redis_url, decode_responses=True)
    await client.flushdb()
    yield client
    await client.aclose()


def lease(redis, home):
    return RedisLease(redis, "words", home, ttl_s=TTL_S)


async def taken_over(held, floor=0):
    """The lease, as soon as the holder before has let it run out."""
    async with asyncio.timeout(10):
        while True:
            with suppress(Unavailable):
                return await held.acquire(floor)
            await asyncio.sleep(0.05)


async def test_a_second_host_stands_by_and_takes_over(redis, tmp_path):
    first, second = lease(redis, tmp_path / "a"), lease(redis, tmp_path / "b")
    assert await first.acquire(0) == 1
    keeping = asyncio.create_task(first.keep())
    for _ in range(3):
        with pytest.raises(Unavailable, match="stands by"):
            await second.acquire(0)
        await asyncio.sleep(TTL_S / 2)
    await first.verify()
    keeping.cancel()  # as if the process had stopped for a while
    assert await taken_over(second) == 2
    with pytest.raises(LeaseLost):
        await first.verify()
    await first.release()
    await second.verify()


async def test_a_host_that_was_replaced_writes_and_sends_nothing_more(redis, tmp_path):
    """Both on one directory, as on a shared volume, one after the other."""
    bus = Bus(Mortal())
    old = WordsRig(tmp_path, bus=bus, lease=lease(redis, tmp_path / "lock-a"))
    old.store.fence(await old.lease.acquire(old.store.token))
    await old.publish(5)
    await old.arrive("a", "b")
    for _ in range(3):  # opened, run, stored: its events wait in the outbox
        await old.loop.once()
    assert bus.events == []

    new = WordsRig(tmp_path, bus=bus, lease=lease(redis, tmp_path / "lock-b"))
    new.store.fence(await taken_over(new.lease, new.store.token))
    for write in (old.loop.once, lambda: old.arrive("c", first=2), lambda: old.publish(6)):
        with pytest.raises(LeaseLost):
            await write()
    with pytest.raises(LeaseLost):
        old.store.fence(old.lease.token)
    assert bus.events == []
    assert new.store.counts("samples", new.key) == {"used": 2}

    await new.settle()
    assert len(new.candidates) == len(new.steps) == 1
    assert new.loop.executor.ran == []  # the step was made by the first host
    assert await old.lease.release() is None
    await new.lease.verify()


async def test_events_are_held_back_on_a_directory_of_its_own(redis, tmp_path):
    old = WordsRig(tmp_path / "a", lease=lease(redis, tmp_path / "a"))
    old.store.fence(await old.lease.acquire(0))
    await old.publish(5)
    await old.arrive("a", "b")
    await taken_over(lease(redis, tmp_path / "b"))
    with pytest.raises(LeaseLost):
        await old.settle()
    assert old.bus.events == []


async def test_tokens_grow_though_redis_lost_its_data(redis, tmp_path):
    held = lease(redis, tmp_path)
    assert await held.acquire(41) == 42
    await redis.flushdb()
    await held.verify()  # no other host came between
    await redis.flushdb()
    other = lease(redis, tmp_path / "b")
    assert await other.acquire(0) == 1
    with pytest.raises(LeaseLost):
        await held.verify()


async def test_a_restart_on_the_same_directory_does_not_wait(redis, tmp_path):
    killed = lease(redis, tmp_path)
    token = await killed.acquire(0)
    with pytest.raises(Unavailable, match="another process uses"):
        await lease(redis, tmp_path).acquire(0)
    os.close(killed._lock)  # the kernel does so when a process is killed
    killed._lock = None
    again = lease(redis, tmp_path)
    assert await again.acquire(token) == token + 1
    with pytest.raises(LeaseLost):
        await killed.verify()


async def test_a_released_lease_is_free_at_once(redis, tmp_path):
    first, second = lease(redis, tmp_path / "a"), lease(redis, tmp_path / "b")
    await first.acquire(0)
    await first.release()
    assert await second.acquire(0) == 2


async def test_a_call_that_hangs_costs_no_lease(redis, tmp_path):
    """A connection may be dropped on the way: the next call goes over another."""
    held, hung = RedisLease(redis, "node", ttl_s=1.0), 0

    async def hanging(*words):
        nonlocal hung
        hung += 1
        held._redis = redis
        await asyncio.sleep(60)

    async with held.during(wait_s=0):
        held._redis = SimpleNamespace(eval=hanging)
        await asyncio.sleep(1.5)
        await held.verify()
    assert hung == 1


async def test_a_block_ends_if_its_lease_cannot_be_renewed(redis, tmp_path):
    held = RedisLease(redis, "node", ttl_s=TTL_S)

    async def away(*_):
        raise ConnectionError("away, as asked")

    async def hold():
        async with asyncio.timeout(10), held.during(wait_s=0):
            held._redis = SimpleNamespace(eval=away)
            try:
                await asyncio.sleep(60)
            finally:
                held._redis = redis

    with pytest.raises(LeaseLost, match="was lost"):
        await hold()
    assert not await held.taken()
