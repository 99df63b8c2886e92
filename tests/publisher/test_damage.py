"""Damaged values in Redis: the publisher deletes the heads and rebuilds them from the log."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from reefcommon.errors import Damaged
from tests.publisher.conftest import World
from tests.publisher.fakes import Fuse, Killed, evaluated

pytestmark = pytest.mark.redis

HEAD, CHAIN, RELEASES, PENDING = (
    f"reef:{{default}}:{name}" for name in ("head", "chain", "releases", "pending")
)


@pytest.fixture
async def raw(world: World) -> AsyncIterator[Redis]:
    """The same store, for bytes that are no text."""
    arguments = world.redis.connection_pool.connection_kwargs
    client = Redis(host=arguments["host"], port=arguments["port"], db=arguments["db"])
    yield client
    await client.aclose()


async def damage(raw: Redis, what: str, release_id: str) -> None:
    """One byte of a value, as an AOF gives it back after a flipped bit."""
    if what == "head":
        await raw.set(HEAD, (await raw.get(HEAD) or b"")[:-1] + b"\xe5")
    elif what == "chain":
        await raw.lset(CHAIN, 1, b"r\xff")  # type: ignore[misc]
    elif what == "pending":
        await raw.hset(PENDING, "r9-abcdef", b"\xff")  # type: ignore[misc]
    else:
        value = await raw.hget(RELEASES, release_id) or b""  # type: ignore[misc]
        await raw.hset(RELEASES, release_id, value.replace(b'"kind"', b'"kin\xe4"', 1))  # type: ignore[misc]


@pytest.mark.parametrize("while_running", [False, True], ids=["start", "running"])
@pytest.mark.parametrize("what", ["head", "chain", "release", "pending"])
async def test_damaged_heads_are_rebuilt_from_the_log(
    world: World, raw: Redis, what: str, *, while_running: bool
) -> None:
    upkeep = await world.started()
    for seed in "abc":
        await world.publish(upkeep, seed)
    before = await world.heads.chain("default")
    await damage(raw, what, before[0].release_id)
    with capture_logs() as logs:
        # A round reads what is resident; it does not read the pending releases.
        if not while_running or what == "pending":
            upkeep = await world.started()
        await upkeep.round()
    assert await world.heads.chain("default") == before
    assert await world.head() == before[0]
    assert await world.heads.pending("default") == []
    assert [row["reason"] != "" for row in logs if row["event"] == "damaged_heads_deleted"] == [
        True
    ]
    assert (await world.publish(upkeep, "next")).parent_id == before[0].release_id


async def test_a_release_without_its_announcement_is_added_again(world: World, raw: Redis) -> None:
    """Killed between the head's move and the announcement, and then the heads are damaged."""
    upkeep = await world.started()
    await world.publish(upkeep, "a")
    event = evaluated("default", (await world.head()).release_id, "b")
    fuse = Fuse(left=0)
    dying = world.process()
    dying.runner.events._fuse = fuse  # type: ignore[attr-defined]
    with pytest.raises(Killed):
        await dying.handlers.on_evaluated(event)
    lost = await world.head()
    assert lost.candidate_id == event.candidate.event_id
    await damage(raw, "head", lost.release_id)
    upkeep = await world.started()
    assert (await world.head()).release_id == lost.parent_id
    await upkeep.handlers.resume()
    assert await world.head() == lost


async def test_damage_that_the_log_cannot_mend_is_an_error(world: World, raw: Redis) -> None:
    upkeep = await world.started()
    await world.publish(upkeep, "a")
    world.events.sent.clear()
    await damage(raw, "head", (await world.head()).release_id)
    with pytest.raises(Damaged, match="from a backup"):
        await world.started()


async def test_a_damaged_work_is_begun_again(world: World, raw: Redis) -> None:
    """Its event was not finished, so that it comes again."""
    upkeep = await world.started()
    event = evaluated("default", (await world.head()).release_id)
    await raw.sadd("reef:works", f"default {event.candidate.event_id}")  # type: ignore[misc]
    await raw.set(f"reef:{{default}}:work:{event.candidate.event_id}", b'{"work_id": "\xff')
    upkeep = await world.started()
    await upkeep.round()
    await upkeep.handlers.resume()
    await upkeep.handlers.on_evaluated(event)
    assert (await world.head()).candidate_id == event.candidate.event_id
