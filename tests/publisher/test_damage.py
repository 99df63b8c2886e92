"""Values in Redis that the disk has damaged: the publisher sets them aside and builds the heads anew from the log."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis
from structlog.testing import capture_logs

from reefcommon.errors import Damaged
from reefcommon.events import ReleasePublished
from tests.publisher.conftest import World
from tests.publisher.fakes import evaluated

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
        old, new = {
            "release": (b'"kind"', b'"kin\xe4"'),
            "content": (b'content_id":"lora-', b'content_id":"lora+'),
        }[what]
        assert old in value
        await raw.hset(RELEASES, release_id, value.replace(old, new, 1))  # type: ignore[misc]


@pytest.mark.parametrize("while_running", [False, True], ids=["start", "running"])
@pytest.mark.parametrize("what", ["head", "chain", "release", "content", "pending"])
async def test_damaged_heads_are_built_anew(
    world: World, raw: Redis, what: str, *, while_running: bool
) -> None:
    upkeep = await world.started()
    for seed in "abc":
        await world.publish(upkeep, seed)
    before = await world.heads.chain("default")
    await damage(raw, what, before[0].release_id)
    with capture_logs() as logs:
        if not while_running or what in {
            "chain",
            "content",
            "pending",
        }:  # a round looks at what is resident, as far as it can see
            upkeep = await world.started()
        await upkeep.round()
    assert await world.heads.chain("default") == before
    assert await world.head() == before[0]
    assert await world.heads.pending("default") == []
    assert [row["reason"] != "" for row in logs if row["event"] == "damaged_heads_rebuilt"] == [
        True
    ]
    assert await raw.exists(f"{RELEASES}:damaged"), "set aside"
    assert (await world.publish(upkeep, "next")).parent_id == before[0].release_id


async def test_a_release_that_is_not_told_yet_is_kept(world: World, raw: Redis) -> None:
    """The log ends before the head: what can be read of the heads is used too."""
    upkeep = await world.started()
    for seed in "ab":
        await world.publish(upkeep, seed)
    before = await world.heads.chain("default")
    world.events.sent = [
        event
        for event in world.events.sent
        if not (isinstance(event, ReleasePublished) and event.release == before[0])
    ]
    await damage(raw, "release", before[1].release_id)
    await world.started()
    assert await world.heads.chain("default") == before


async def test_what_the_log_does_not_know_is_left_and_others_go_on(
    world: World, raw: Redis
) -> None:
    upkeep = await world.started()
    await world.publish(upkeep, "a")
    await raw.sadd("reef:scenarios", "lost")  # type: ignore[misc]
    await raw.set("reef:{lost}:head", b"r0-\xff")
    upkeep = await world.started()
    for node in world.nodes:
        node.adapters.clear()
    await upkeep.round()
    assert "lost" in upkeep.damaged
    head = await world.head()
    assert all(head.adapter in node.adapters for node in world.nodes)
    with pytest.raises(Damaged):
        await world.heads.head("lost")


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
