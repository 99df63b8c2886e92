"""The ledger on a real store whose connections break."""

import asyncio

import pytest
import redis.asyncio

from services.gateway.domain.keys import KeyEntry
from services.gateway.keys.redis import RedisKeyStore

pytestmark = pytest.mark.redis


async def test_connections_that_a_restart_has_cut_fail_no_request(redis_url: str) -> None:
    """Each one that lies in the pool is opened anew by whoever takes it."""
    ledger = RedisKeyStore(redis_url, ttl_s=60)
    entry = KeyEntry(digest="d", kind="inference", scenario="s", shard="0000")
    await asyncio.gather(*(ledger.claim(f"cut-{n}", entry, lease_s=5) for n in range(8)))
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        await client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    found = await asyncio.gather(*(ledger.find(f"cut-{n}") for n in range(8)))
    assert found == [entry] * 8
    await ledger.stop()


async def test_a_key_that_is_free_is_taken_by_one_alone(redis_url: str) -> None:
    ledger = RedisKeyStore(redis_url, ttl_s=60)
    entries = [
        KeyEntry(digest="d", kind="inference", scenario="s", shard="0000", owner=f"o{n}")
        for n in range(8)
    ]
    assert await ledger.claim("free-1", entries[0], lease_s=5) is None
    await ledger.free("free-1", entries[0])
    assert await ledger.find("free-1") is None
    found = [
        entry
        for entry in await asyncio.gather(
            *(ledger.claim("free-1", entry, lease_s=5) for entry in entries)
        )
        if entry
    ]
    assert [entry.state for entry in found].count("free") == 1
    winner = await ledger.find("free-1")
    assert winner is not None
    assert {entry.owner for entry in found if entry.state == "open"} == {winner.owner}
    await ledger.stop()


async def test_what_was_never_used_is_known_once_it_is_whole_and_for_ever(redis_url: str) -> None:
    """Marks come before the moment from which they count, outlive the entry, and are lost together with everything else."""
    own = f"{redis_url.rpartition('/')[0]}/3"
    async with redis.asyncio.Redis.from_url(own) as client:
        await client.flushdb()
        ledger = RedisKeyStore(own, ttl_s=60)
        assert await ledger.note("early") == "unseen", "nobody knows yet what came before"
        await ledger.call_whole()
        assert [await ledger.note(key) for key in ("early", "late", "late")] == [
            "used",
            "new",
            "used",
        ]
        assert {await ledger.note(f"key-{n}") for n in range(500)} == {"new"}
        await client.flushdb()
        assert await ledger.note("after") == "unseen"
        await client.flushdb()
        await ledger.stop()
