"""What every ReleaseHeads must keep, on a real Valkey."""

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from reefcommon.errors import Conflict, Unavailable
from reefcommon.events import Release, utc_now
from reefcommon.heads_redis import RedisReleaseHeads, connect

pytestmark = pytest.mark.redis


@pytest.fixture
async def heads(redis_url: str) -> AsyncIterator[RedisReleaseHeads]:
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


async def test_a_scenario_that_nobody_created(heads: RedisReleaseHeads, scenario: str) -> None:
    assert await heads.head(scenario) is None
    assert await heads.chain(scenario) == []
    assert await heads.release(scenario, "r0") is None
    assert scenario not in await heads.scenarios()


async def test_the_chain_grows_and_reads_newest_first(heads: RedisReleaseHeads, scenario: str) -> None:
    first = release(scenario, "r0")
    second = release(scenario, "r1", first)
    await heads.advance(first)
    await heads.advance(second)
    assert await heads.head(scenario) == second
    assert await heads.chain(scenario) == [second, first]
    assert await heads.chain(scenario, limit=1) == [second]
    assert await heads.release(scenario, "r0") == first
    assert scenario in await heads.scenarios()


async def test_fifty_publishers_with_one_expected_head(heads: RedisReleaseHeads, scenario: str) -> None:
    """P1: exactly one wins, and the others leave nothing behind."""
    root = release(scenario, "r0")
    await heads.advance(root)
    rivals = [release(scenario, f"r1-{i}", root) for i in range(50)]
    results = await asyncio.gather(*(heads.advance(rival) for rival in rivals), return_exceptions=True)
    winners = [rival for rival, result in zip(rivals, results, strict=True) if result is None]
    assert len(winners) == 1
    assert all(isinstance(result, Conflict) for result in results if result is not None)
    assert await heads.chain(scenario) == [winners[0], root]
    for rival in rivals:
        assert await heads.release(scenario, rival.release_id) == (rival if rival is winners[0] else None)


async def test_fifty_creations(heads: RedisReleaseHeads, scenario: str) -> None:
    """P1, where nothing is there yet."""
    results = await asyncio.gather(*(heads.advance(release(scenario, f"r0-{i}")) for i in range(50)), return_exceptions=True)
    assert results.count(None) == 1
    assert len(await heads.chain(scenario)) == 1


async def test_a_repeat_changes_nothing(heads: RedisReleaseHeads, scenario: str) -> None:
    root = release(scenario, "r0")
    child = release(scenario, "r1", root)
    for link in (root, root, child, child, root):
        await heads.advance(link)
    assert await heads.chain(scenario) == [child, root]


async def test_one_id_for_two_releases_is_a_conflict(heads: RedisReleaseHeads, scenario: str) -> None:
    root = release(scenario, "r0")
    await heads.advance(root)
    with pytest.raises(Conflict, match="another release under the same id"):
        await heads.advance(root.model_copy(update={"content_id": "other"}))
    assert await heads.chain(scenario) == [root]


async def test_pending_releases_are_beside_the_chain(heads: RedisReleaseHeads, scenario: str) -> None:
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


async def test_a_server_that_is_away(unused_tcp_port: int) -> None:
    client = connect(f"redis://127.0.0.1:{unused_tcp_port}/0")
    with pytest.raises(Unavailable, match="Redis does not answer"):
        await RedisReleaseHeads(client).head("default")
    await client.aclose()
