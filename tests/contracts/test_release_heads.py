"""The contract of ReleaseHeads: in memory, and on a real Valkey."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from redis.asyncio import Redis

from reefcommon.errors import Conflict, Damaged, Unavailable
from reefcommon.events import Release, utc_now
from reefcommon.releases import ReleaseHeads
from reefkit.redis_heads import RedisReleaseHeads, connect
from reefkit.redis_lease import RedisLease
from tests.fakes.heads import MemoryReleaseHeads


@pytest.fixture(params=["memory", pytest.param("valkey", marks=pytest.mark.redis)])
async def heads(request: pytest.FixtureRequest) -> AsyncIterator[ReleaseHeads]:
    if request.param == "memory":
        yield MemoryReleaseHeads()
        return
    client = connect(request.getfixturevalue("redis_url"))
    yield RedisReleaseHeads(client)
    await client.aclose()


@pytest.fixture
async def redis_heads(redis_url: str) -> AsyncIterator[RedisReleaseHeads]:
    client = connect(redis_url)
    yield RedisReleaseHeads(client)
    await client.aclose()


@pytest.fixture
def scenario() -> str:
    return f"s{uuid4().hex[:12]}"


def release(scenario: str, release_id: str, parent: Release | None = None) -> Release:
    sequence = parent.sequence + 1 if parent else 0
    return Release(
        release_id=release_id,
        scenario=scenario,
        sequence=sequence,
        parent_id=parent.release_id if parent else None,
        kind="lora" if parent else "base",
        content_id=f"content-{release_id}",
        operation="training" if parent else "creation",
        load_id=f"inc:{sequence}",
        created_at=utc_now(),
    )


async def test_a_scenario_that_nobody_created(heads: ReleaseHeads, scenario: str) -> None:
    assert await heads.head(scenario) is None
    assert await heads.chain(scenario) == []
    assert await heads.release(scenario, "r0") is None
    assert scenario not in await heads.scenarios()


async def test_the_chain_grows_and_reads_newest_first(heads: ReleaseHeads, scenario: str) -> None:
    first = release(scenario, "r0")
    second = release(scenario, "r1", first)
    await heads.advance(first)
    await heads.advance(second)
    assert await heads.head(scenario) == second
    assert await heads.chain(scenario) == [second, first]
    assert await heads.chain(scenario, limit=1) == [second]
    assert await heads.release(scenario, "r0") == first
    assert scenario in await heads.scenarios()


async def test_fifty_publishers_with_one_expected_head(heads: ReleaseHeads, scenario: str) -> None:
    """P1: exactly one wins, and the others leave nothing behind."""
    root = release(scenario, "r0")
    await heads.advance(root)
    rivals = [release(scenario, f"r1-{i}", root) for i in range(50)]
    results = await asyncio.gather(
        *(heads.advance(rival) for rival in rivals), return_exceptions=True
    )
    winners = [rival for rival, result in zip(rivals, results, strict=True) if result is None]
    assert len(winners) == 1
    assert all(isinstance(result, Conflict) for result in results if result is not None)
    assert await heads.chain(scenario) == [winners[0], root]
    for rival in rivals:
        assert await heads.release(scenario, rival.release_id) == (
            rival if rival is winners[0] else None
        )


async def test_fifty_creations(heads: ReleaseHeads, scenario: str) -> None:
    """P1, where nothing is there yet."""
    results = await asyncio.gather(
        *(heads.advance(release(scenario, f"r0-{i}")) for i in range(50)), return_exceptions=True
    )
    assert results.count(None) == 1
    assert len(await heads.chain(scenario)) == 1


async def test_a_repeat_changes_nothing(heads: ReleaseHeads, scenario: str) -> None:
    root = release(scenario, "r0")
    child = release(scenario, "r1", root)
    for link in (root, root, child, child, root):
        await heads.advance(link)
    assert await heads.chain(scenario) == [child, root]


async def test_one_id_for_two_releases_is_a_conflict(heads: ReleaseHeads, scenario: str) -> None:
    root = release(scenario, "r0")
    await heads.advance(root)
    with pytest.raises(Conflict, match="another release under the same id"):
        await heads.advance(root.model_copy(update={"content_id": "other"}))
    assert await heads.chain(scenario) == [root]


async def test_pending_releases_are_beside_the_chain(heads: ReleaseHeads, scenario: str) -> None:
    """H4: what waits for a person is found by its id and moves no head."""
    root = release(scenario, "r0")
    await heads.advance(root)
    waiting = [release(scenario, "r1-a", root), release(scenario, "r1-b", root)]
    for pending in reversed(waiting):
        await heads.put_pending(pending)
    assert await heads.pending(scenario) == waiting
    assert await heads.release(scenario, "r1-a") == waiting[0]
    assert await heads.head(scenario) == root
    await heads.drop_pending(scenario, "r1-a")
    await heads.drop_pending(scenario, "r1-a")
    assert await heads.pending(scenario) == waiting[1:]


async def test_a_hold_lasts_until_it_is_ended(heads: ReleaseHeads, scenario: str) -> None:
    assert await heads.held(scenario) is None
    await heads.hold(scenario, "")
    assert await heads.held(scenario) == ""
    await heads.hold(scenario, "until Monday")
    assert await heads.held(scenario) == "until Monday"
    await heads.hold(scenario, None)
    await heads.hold(scenario, None)
    assert await heads.held(scenario) is None


async def test_what_waits_longest_comes_first_and_what_never_began_is_no_scenario(
    heads: ReleaseHeads, scenario: str
) -> None:
    root = release(scenario, "r0")
    later = [release(scenario, name, root) for name in ("r1-b", "r1-a")]
    for pending in later:
        await heads.put_pending(pending)
    assert await heads.pending(scenario) == later
    with pytest.raises(Conflict, match="found nothing"):
        await heads.advance(later[0])
    assert scenario not in await heads.scenarios()


@pytest.mark.redis
async def test_a_server_that_is_away(unused_tcp_port: int) -> None:
    client = connect(f"redis://127.0.0.1:{unused_tcp_port}/0")
    with pytest.raises(Unavailable, match="Redis does not answer"):
        await RedisReleaseHeads(client).head("default")
    await client.aclose()


@pytest.mark.redis
@pytest.mark.parametrize(
    ("setting", "value"),
    [("min-replicas-to-write", 1), ("maxmemory", 1), ("busy-reply-threshold", 50)],
)
async def test_a_server_that_refuses_for_now_is_waited_for(
    redis_heads: RedisReleaseHeads, redis_url: str, scenario: str, setting: str, value: int
) -> None:
    """No replica in sync, no memory, or a script that takes long: writes count once that is over."""
    root = release(scenario, "r0")
    async with Redis.from_url(redis_url) as client, Redis.from_url(redis_url) as other:
        before = await client.config_get(setting)
        await client.config_set(setting, value)
        now = "redis.call('TIME')[1]"
        script = f"local t = {now} while {now} - t < 2 do end" if "busy" in setting else "return 1"
        busy = asyncio.create_task(client.eval(script, 0))  # type: ignore[arg-type]
        await asyncio.sleep(0.2)
        for write in (
            redis_heads.advance(root),
            redis_heads.put_pending(root),
            RedisLease(other, scenario).acquire(),
        ):
            with pytest.raises(Unavailable, match="Redis does not answer"):
                await write
        await asyncio.gather(busy, return_exceptions=True)
        await client.config_set(setting, before[setting])
    await redis_heads.advance(root)
    assert await redis_heads.head(scenario) == root


@pytest.mark.redis
@pytest.mark.parametrize("value", [b'{"release_id": "r\xff"}', b"{", b"", b'{"release_id": "r0"}'])
async def test_a_release_that_the_disk_damaged(
    redis_heads: RedisReleaseHeads, redis_url: str, scenario: str, value: bytes
) -> None:
    """A named error that says which and what happens, and the connection is good for the next question."""
    client, other = Redis.from_url(redis_url), release(f"{scenario}-other", "r0")
    root = release(scenario, "r0")
    await redis_heads.advance(root)
    await redis_heads.advance(release(scenario, "r1", root))
    await redis_heads.advance(other)
    await client.hset(f"reef:{{{scenario}}}:releases", "r1", value)  # type: ignore[misc]
    for read in (
        redis_heads.head(scenario),
        redis_heads.chain(scenario),
        redis_heads.release(scenario, "r1"),
    ):
        with pytest.raises(
            Damaged,
            match=f"release 'r1' of scenario '{scenario}' in Redis is damaged: .* rebuilds .* from the release log",
        ):
            await read
        assert await redis_heads.chain(other.scenario) == [other]
    await client.set(f"reef:{{{scenario}}}:head", b"r\xfe")
    with pytest.raises(Damaged, match="named, and not there"):
        await redis_heads.head(scenario)
    await client.aclose()


@pytest.mark.redis
async def test_a_forgotten_scenario_can_be_rebuilt(
    redis_heads: RedisReleaseHeads, scenario: str
) -> None:
    root = release(scenario, "r0")
    await redis_heads.advance(root)
    await redis_heads.put_pending(release(scenario, "r1", root))
    await redis_heads.forget(scenario)
    assert await redis_heads.head(scenario) is None
    assert await redis_heads.pending(scenario) == []
    assert scenario not in await redis_heads.scenarios()
    await redis_heads.advance(root)
    assert await redis_heads.chain(scenario) == [root]
