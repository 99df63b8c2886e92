"""Heads that were lost or are away: the log brings them back."""

import pytest

from reefcommon.errors import Conflict, Unavailable
from reefcommon.events import (
    ReleasePending,
    ReleasePublished,
    ReleaseRejected,
    RollbackRequested,
    utc_now,
)
from tests.publisher.conftest import REVIEWED, World
from tests.publisher.fakes import Fuse, Killed, evaluated
from tests.publisher.test_commands import hold

pytestmark = pytest.mark.redis


async def test_a_chain_without_its_works(world: World) -> None:
    """After a rebuild the works are gone; a redelivered verdict is still a repeat."""
    upkeep = await world.started()
    event = evaluated("default", (await world.head()).release_id)
    await upkeep.handlers.on_evaluated(event)
    await world.redis.flushdb()
    upkeep = await world.started()
    await upkeep.handlers.on_evaluated(event)
    assert len(await world.heads.chain("default")) == 2
    assert world.rejections() == []


async def test_an_old_verdict_without_its_work(world: World) -> None:
    """Far behind the head it is a repeat too: to call a published candidate conflicted would take
    back what was learnt.
    """
    upkeep = await world.started()
    event = evaluated("default", (await world.head()).release_id)
    await upkeep.handlers.on_evaluated(event)
    first = head = await world.head()
    for sequence in range(2, 103):
        head = head.model_copy(
            update={
                "release_id": f"r{sequence}-x",
                "sequence": sequence,
                "parent_id": head.release_id,
                "candidate_id": None,
            }
        )
        await world.heads.advance(head)
    assert first not in await world.heads.chain("default")
    await world.redis.delete(f"reef:{{default}}:work:{event.candidate.event_id}")
    stranger = evaluated("default", event.candidate.base_release_id, "stranger")
    for verdict in (event, stranger):
        await upkeep.handlers.on_evaluated(verdict)
    assert [event.candidate_id for event in world.events.of(ReleaseRejected)] == [
        stranger.candidate.event_id
    ]
    assert await world.head() == head


async def test_an_emptied_store_is_rebuilt_while_running(world: World) -> None:
    upkeep = await world.started()
    for seed in "abc":
        await world.publish(upkeep, seed)
    target = (await world.heads.chain("default"))[-1]
    await upkeep.handlers.on_command(
        RollbackRequested(
            event_id="cmd", at=utc_now(), scenario="default", release_id=target.release_id
        )
    )
    before = await world.heads.chain("default")
    await world.command(upkeep, hold("until Monday"))
    await world.redis.flushdb()
    await upkeep.round()
    assert await world.heads.chain("default") == before
    assert await world.heads.held("default") == "until Monday"
    await world.command(upkeep, hold(None, "cmd-resume"))
    await world.redis.flushdb()
    await upkeep.round()
    assert await world.heads.held("default") is None
    assert [release.operation for release in before] == [
        "rollback",
        "training",
        "training",
        "training",
        "creation",
    ]
    assert len(world.events.of(ReleasePublished)) == 5


async def test_a_lost_tail_is_caught_up_at_the_start(world: World) -> None:
    upkeep = await world.started()
    root = await world.head()
    for seed in "ab":
        await world.publish(upkeep, seed)
    before = await world.heads.chain("default")
    await world.redis.flushdb()
    await world.heads.advance(root)
    await world.started()
    assert await world.heads.chain("default") == before


async def test_pending_releases_survive_a_rebuild(world: World) -> None:
    world.config = REVIEWED
    upkeep = await world.started()
    await upkeep.handlers.on_evaluated(evaluated("default", (await world.head()).release_id))
    before = await world.heads.pending("default")
    assert len(before) == len(world.events.of(ReleasePending)) == 1
    await world.redis.flushdb()
    await world.started()
    assert await world.heads.pending("default") == before


async def test_the_heads_are_away(world: World) -> None:
    upkeep = await world.started()
    root = await world.head()
    event = evaluated("default", root.release_id)

    async def lost(_release: object) -> None:
        raise Conflict("lost")

    async def away(_release: object) -> None:
        raise Unavailable("Redis does not answer")

    inner = upkeep.runner.heads._inner  # type: ignore[attr-defined]
    inner.advance = away
    with pytest.raises(Unavailable):
        await upkeep.handlers.on_evaluated(event)
    assert world.rejections() == []
    inner.advance = lost
    await upkeep.handlers.on_evaluated(event)
    assert world.rejections() == [("conflicted", "lost")]
    assert all(not node.adapters for node in world.nodes)


async def test_a_rebuild_that_is_killed_after_a_head_has_brought_its_hold(world: World) -> None:
    await world.command(await world.started(), hold("until Monday"))
    await world.redis.flushdb()
    with pytest.raises(Killed):
        await world.process(Fuse(left=0, after=True)).start()
    assert await world.heads.scenarios() == ["default"], "its head is there"
    await world.started()
    assert await world.heads.held("default") == "until Monday"
