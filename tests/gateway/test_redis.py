"""The key_store on a real store whose connections break."""

import asyncio
import time
from dataclasses import replace

import pytest
import redis.asyncio

from services.gateway.domain.keys import KeyEntry
from services.gateway.keys.redis import RedisKeyStore

pytestmark = pytest.mark.redis


async def test_connections_that_a_restart_has_cut_fail_no_request(redis_url: str) -> None:
    """Each one that lies in the pool is opened anew by whoever takes it."""
    key_store = RedisKeyStore(redis_url, ttl_s=60)
    entry = KeyEntry(digest="d", kind="inference", scenario="s", shard="0000")
    await asyncio.gather(*(key_store.claim(f"cut-{n}", entry, lease_s=5) for n in range(8)))
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        await client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    found = await asyncio.gather(*(key_store.find(f"cut-{n}") for n in range(8)))
    assert found == [entry] * 8
    await key_store.stop()


async def test_a_key_that_is_free_is_taken_by_one_alone(redis_url: str) -> None:
    key_store = RedisKeyStore(redis_url, ttl_s=60)
    entries = [
        KeyEntry(digest="d", kind="inference", scenario="s", shard="0000", owner=f"o{n}")
        for n in range(8)
    ]
    assert await key_store.claim("free-1", entries[0], lease_s=5) is None
    await key_store.complete("free-1", replace(entries[0], state="free"))
    assert await key_store.find("free-1") is None
    found = [
        entry
        for entry in await asyncio.gather(
            *(key_store.claim("free-1", entry, lease_s=5) for entry in entries)
        )
        if entry
    ]
    assert [entry.state for entry in found].count("free") == 1
    winner = await key_store.find("free-1")
    assert winner is not None
    assert {entry.owner for entry in found if entry.state == "open"} == {winner.owner}
    await key_store.stop()


async def test_a_key_whose_lease_ran_out_is_taken_by_one_alone(redis_url: str) -> None:
    """As unsure, with the time at which its work had ended; a renewal in time keeps it."""
    store = RedisKeyStore(redis_url, ttl_s=60)
    first, *others = [
        KeyEntry(digest="d", kind="inference", scenario="s", shard="0000", owner=f"o{n}")
        for n in range(8)
    ]
    assert await store.claim("dark-1", first, lease_s=0.3) is None
    await asyncio.sleep(0.2)
    assert await store.renew("dark-1", first, lease_s=0.3)
    await asyncio.sleep(0.2)
    assert await store.claim("dark-1", others[0], lease_s=5) == first
    await asyncio.sleep(0.3)
    before = time.time()
    found = await asyncio.gather(*(store.claim("dark-1", entry, lease_s=5) for entry in others))
    states = [entry.state for entry in found if entry is not None]
    assert sorted(states) == ["open"] * 6 + ["unsure"]
    (unsure,) = [entry for entry in found if entry is not None and entry.state == "unsure"]
    assert before <= unsure.ended_at <= time.time()
    assert not await store.renew("dark-1", first, lease_s=5), "it is another's"
    winner = await store.find("dark-1")
    assert winner is not None
    assert winner.owner != first.owner
    await store.stop()


async def test_what_redis_lost_is_taken_again_by_its_work(redis_url: str) -> None:
    own = f"{redis_url.rpartition('/')[0]}/3"
    entry = KeyEntry(digest="d", kind="inference", scenario="s", shard="0000", owner="o1")
    async with redis.asyncio.Redis.from_url(own) as client:
        await client.flushdb()
        store = RedisKeyStore(own, ttl_s=60)
        since = await store.since()
        assert time.time() - 5 < since == await store.since()
        assert await store.claim("k", entry, lease_s=5) is None
        await client.flushdb()
        assert await store.since() > since
        assert await store.renew("k", entry, lease_s=5)
        assert await store.claim("k", replace(entry, owner="o2"), lease_s=5) == entry
        await store.forget("k")
        assert await store.find("k") is None
        assert await client.exists("reef:lease:k") == 0
        await client.flushdb()
        await store.stop()


async def test_a_clock_that_was_ahead_keeps_no_key_unsure(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory would begin in an hour, and each key of a client would be unsure until then."""
    store, real = RedisKeyStore(redis_url, ttl_s=60), time.time
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        await client.delete("reef:keys:since")
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    assert await store.since() > real() + 3000
    monkeypatch.undo()
    assert abs(await store.since() - real()) < 5
    since = await store.since()
    await asyncio.sleep(0.05)
    assert await store.since() == since, "it goes on from there"
    await store.stop()
