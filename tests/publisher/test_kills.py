"""A publication killed at every effect: the next process finishes the same release once."""

import contextlib

import pytest

from reefcommon.events import ReleasePublished, ReleaseRejected, utc_now
from services.publisher.domain.replay import replay
from services.publisher.redis_works import RedisWorks
from tests.publisher.conftest import World
from tests.publisher.fakes import Fuse, Killed, evaluated

pytestmark = pytest.mark.redis


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("effect", range(16))
async def test_killed_at_any_effect_and_resumed(world: World, when: str, effect: int) -> None:
    """Every transition: the process dies before or after its n-th effect, and a new one finishes
    the same release once.
    """
    await world.started()
    root = await world.head()
    event = evaluated("default", root.release_id)
    fuse = Fuse(left=effect, after=when == "after")
    try:
        await world.process(fuse).handlers.on_evaluated(event)
    except Killed:
        survivor = await world.started()
        await survivor.handlers.resume()
        await survivor.handlers.on_evaluated(event)
    else:
        assert effect >= len(fuse.calls), "the fuse did not blow"
    await (await world.started()).round()
    chain = await world.heads.chain("default")
    assert [release.candidate_id for release in chain] == [event.candidate.event_id, None]
    assert {event.event_id for event in world.events.of(ReleasePublished)} == {
        release.release_id for release in chain
    }
    assert world.rejections() == []
    for node in world.nodes:
        assert list(node.adapters) == [chain[0].adapter]
    assert await RedisWorks(world.redis, kept_s=600).live() == []


async def test_the_kill_test_reaches_every_effect(world: World) -> None:
    """The parametrisation above covers the whole of a publication."""
    await world.started()
    fuse = Fuse()
    await world.process(fuse).handlers.on_evaluated(
        evaluated("default", (await world.head()).release_id)
    )
    assert len(fuse.calls) <= 16
    assert {"save", "load_adapter", "chat", "advance", "publish", "drop_pending"} <= set(fuse.calls)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("effect", ["load_adapter", "advance"])
async def test_an_interrupted_release_serves_since_its_head_moved(
    world: World, when: str, effect: str
) -> None:
    """Not since it was planned; and what the log says is what the chain holds, to the byte."""
    await world.started()
    fuse = Fuse()
    await world.process(fuse).handlers.on_evaluated(
        evaluated("default", (await world.head()).release_id, "first")
    )
    position = fuse.calls.index(effect)
    event = evaluated("default", (await world.head()).release_id, "second")
    with pytest.raises(Killed):
        await world.process(Fuse(left=position, after=when == "after")).handlers.on_evaluated(event)
    stopped = utc_now()
    moved = (await world.head()).candidate_id == event.candidate.event_id
    await (await world.started()).handlers.resume()
    head = await world.head()
    assert head.candidate_id == event.candidate.event_id
    assert moved is (effect == "advance" and when == "after")
    assert (head.created_at > stopped) is not moved
    assert head.created_at > event.at
    assert replay(world.events.sent).chains() == (await world.heads.chain("default"))[::-1]


@pytest.mark.parametrize("effect", range(12))
async def test_killed_while_losing(world: World, effect: int) -> None:
    """P1 with a kill: what a loser staged is gone once it has resumed, and it is told once by
    id.
    """
    await world.started()
    root = await world.head()
    loser = evaluated("default", root.release_id, "loser")
    dying = world.process(Fuse(left=effect))
    original = dying.heads.advance

    async def overtaken(release: object) -> None:
        await (await world.started()).handlers.on_evaluated(
            evaluated("default", root.release_id, "winner")
        )
        await original(release)

    dying.runner.heads._inner.advance = overtaken  # type: ignore[attr-defined]
    with contextlib.suppress(Killed):
        await dying.handlers.on_evaluated(loser)
    survivor = await world.started()
    if (await world.head()) == root:
        await survivor.handlers.on_evaluated(evaluated("default", root.release_id, "winner"))
    await survivor.handlers.resume()
    await survivor.handlers.on_evaluated(loser)
    await survivor.round()
    chain = await world.heads.chain("default")
    assert len(chain) == 2
    for node in world.nodes:
        assert list(node.adapters) == [chain[0].adapter]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("effect", range(2))
async def test_killed_while_a_verdict_against_it_is_told(
    world: World, when: str, effect: int
) -> None:
    """It is told before that is noted: what is noted is over, and nobody looks at it again."""
    await world.started()
    event = evaluated("default", (await world.head()).release_id, verdict="reject")
    with pytest.raises(Killed):
        await world.process(Fuse(left=effect, after=when == "after")).handlers.on_evaluated(event)
    await (await world.started()).handlers.on_evaluated(event)
    assert {told.candidate_id for told in world.events.of(ReleaseRejected)} == {
        event.candidate.event_id
    }
    assert len({told.event_id for told in world.events.of(ReleaseRejected)}) == 1
