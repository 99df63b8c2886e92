"""The publisher's state machine on a real Valkey: one release a candidate, whatever happens on the way."""

import asyncio
import contextlib

import pytest

from reefcommon.errors import Conflict, Transient, Unavailable
from reefcommon.events import (
    ReleasePending,
    ReleasePublished,
    RollbackRequested,
    ScenarioCreateRequested,
    ServingSynced,
    utc_now,
)
from reefcommon.ids import LoadId
from services.publisher.redis_works import RedisWorks
from tests.publisher.conftest import REVIEWED, World
from tests.publisher.fakes import Fuse, Killed, content, evaluated

pytestmark = pytest.mark.redis


async def test_a_winner_becomes_the_head(world: World) -> None:
    upkeep = await world.started()
    root = await world.head()
    assert (root.kind, root.content_id, root.adapter, root.operation, root.sequence) == ("base", "base", None, "creation", 0)
    event = evaluated("default", root.release_id)
    await upkeep.handlers.on_evaluated(event)
    head = await world.head()
    assert head.parent_id == root.release_id
    assert (head.sequence, head.operation, head.candidate_id) == (1, "training", event.candidate.event_id)
    assert head.contents == {"base": "base", "lora": event.candidate.content_id}
    assert head.evaluation == event.evaluation
    assert LoadId.parse(head.load_id).lag_behind(LoadId.parse(root.load_id)) == -1
    assert head.adapter == f"default@{head.release_id}"
    for node in world.nodes:
        assert list(node.adapters) == [head.adapter]
    assert [event.release for event in world.events.of(ReleasePublished)] == [root, head]
    assert {event.node for event in world.events.of(ServingSynced)} == {node.url for node in world.nodes}


async def test_repeats_have_one_effect(world: World) -> None:
    upkeep = await world.started()
    event = evaluated("default", (await world.head()).release_id)
    for process in (upkeep, upkeep, await world.started()):
        await process.handlers.on_evaluated(event)
    assert len(world.events.of(ReleasePublished)) == 2
    assert len(await world.heads.chain("default")) == 2
    assert world.rejections() == []


@pytest.mark.parametrize(("verdict", "reason"), [("reject", "reject it"), ("evaluation_failed", "evaluation_failed: evaluation_failed it")])
async def test_a_loser_changes_nothing_and_is_told(world: World, verdict: str, reason: str) -> None:
    upkeep = await world.started()
    root = await world.head()
    event = evaluated("default", root.release_id, verdict=verdict)
    await upkeep.handlers.on_evaluated(event)
    await upkeep.handlers.on_evaluated(event)
    assert await world.heads.chain("default") == [root]
    assert world.rejections() == [("rejected", reason)]
    assert all(not node.loads for node in world.nodes)


async def test_two_publishers_with_one_expected_head(world: World) -> None:
    """P1: exactly one wins; the other leaves no release and no adapter, and its candidate is told."""
    await world.started()
    root = await world.head()
    processes = [world.process() for _ in range(8)]
    rivals = [evaluated("default", root.release_id, f"rival-{i}") for i in range(8)]
    await asyncio.gather(*(p.handlers.on_evaluated(rival) for p, rival in zip(processes, rivals, strict=True)))
    chain = await world.heads.chain("default")
    assert len(chain) == 2
    assert len(world.events.of(ReleasePublished)) == 2
    assert [outcome for outcome, _ in world.rejections()] == ["conflicted"] * 7
    for node in world.nodes:
        assert list(node.adapters) == [chain[0].adapter]


async def test_a_candidate_of_an_old_head_conflicts(world: World) -> None:
    upkeep = await world.started()
    root = await world.head()
    head = await world.publish(upkeep, "a")
    await upkeep.handlers.on_evaluated(evaluated("default", root.release_id, "late"))
    assert world.rejections() == [("conflicted", f"made from {root.release_id}, but {head.release_id} is the head")]
    assert await world.head() == head


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("effect", range(16))
async def test_killed_at_any_effect_and_resumed(world: World, when: str, effect: int) -> None:
    """Every transition: the process dies before or after its n-th effect, and a new one finishes the same release once."""
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
    assert {event.event_id for event in world.events.of(ReleasePublished)} == {release.release_id for release in chain}
    assert world.rejections() == []
    for node in world.nodes:
        assert list(node.adapters) == [chain[0].adapter]
    assert await RedisWorks(world.redis, kept_s=600).live() == []


async def test_the_kill_test_reaches_every_effect(world: World) -> None:
    """The parametrisation above covers the whole of a publication."""
    await world.started()
    fuse = Fuse()
    await world.process(fuse).handlers.on_evaluated(evaluated("default", (await world.head()).release_id))
    assert len(fuse.calls) <= 16
    assert {"save", "load_adapter", "chat", "advance", "publish", "drop_pending"} <= set(fuse.calls)


@pytest.mark.parametrize("effect", range(12))
async def test_killed_while_losing(world: World, effect: int) -> None:
    """P1 with a kill: what a loser staged is gone once it has resumed, and it is told once by id."""
    await world.started()
    root = await world.head()
    loser = evaluated("default", root.release_id, "loser")
    dying = world.process(Fuse(left=effect))
    original = dying.heads.advance

    async def overtaken(release: object) -> None:
        await (await world.started()).handlers.on_evaluated(evaluated("default", root.release_id, "winner"))
        await original(release)

    dying.publication.heads._inner.advance = overtaken  # type: ignore[attr-defined]
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


async def test_a_probe_that_reports_another_model(world: World) -> None:
    """P4: the publish fails loudly, the head does not move, nothing stays loaded."""
    upkeep = await world.started()
    root = await world.head()
    world.nodes[1].lies = True
    await upkeep.handlers.on_evaluated(evaluated("default", root.release_id))
    assert await world.head() == root
    [(outcome, reason)] = world.rejections()
    assert outcome == "aborted"
    assert "http://node-2 was asked for default@r1-" in reason
    assert reason.endswith("and answered with reef")
    assert all(not node.adapters for node in world.nodes)


async def test_a_damaged_artifact(world: World) -> None:
    upkeep = await world.started()
    root = await world.head()
    world.store.damaged.add(content("lora", "a"))
    await upkeep.handlers.on_evaluated(evaluated("default", root.release_id, "a"))
    assert await world.head() == root
    assert "does not match its manifest" in world.rejections()[0][1]


async def test_a_node_that_does_not_answer_is_set_apart_and_comes_back(world: World) -> None:
    upkeep = await world.started()
    world.nodes[0].down = True
    head = await world.publish(upkeep, "a")
    assert head.sequence == 1
    assert "does not answer" in (await upkeep.fleet.rotation.apart())["http://node-1"]
    assert {event.node for event in world.events.of(ServingSynced)} == {"http://node-2"}
    await upkeep.round()
    world.nodes[0].down = False
    await upkeep.round()
    assert await upkeep.fleet.rotation.apart() == {}
    assert list(world.nodes[0].adapters) == [head.adapter]
    assert {event.node for event in world.events.of(ServingSynced)} == {"http://node-1", "http://node-2"}


async def test_no_node_left_is_tried_again(world: World) -> None:
    upkeep = await world.started()
    root = await world.head()
    event = evaluated("default", root.release_id)
    for node in world.nodes:
        node.down = True
    with pytest.raises(Unavailable, match="no serving node took"):
        await upkeep.handlers.on_evaluated(event)
    assert world.rejections() == []
    for node in world.nodes:
        node.down = False
    await upkeep.handlers.on_evaluated(event)
    assert (await world.head()).candidate_id == event.candidate.event_id


async def test_every_node_refuses(world: World) -> None:
    upkeep = await world.started()
    root = await world.head()
    for node in world.nodes:
        node.full = True
    await upkeep.handlers.on_evaluated(evaluated("default", root.release_id))
    assert await world.head() == root
    assert "every serving node refused" in world.rejections()[0][1]


async def test_a_node_that_refuses_to_unload(world: World) -> None:
    """P6: named as such, only that node is set apart, the releases go on."""
    upkeep = await world.started()
    world.nodes[0].clings = True
    releases = [await world.publish(upkeep, seed) for seed in "abcd"]
    apart = await upkeep.fleet.rotation.apart()
    assert list(apart) == ["http://node-1"]
    assert apart["http://node-1"] == f"http://node-1 refuses to unload {releases[0].adapter}: requests are running"
    assert (await world.head()).adapter in world.nodes[1].adapters
    assert releases[0].adapter in world.nodes[0].adapters
    await upkeep.round()
    assert list(await upkeep.fleet.rotation.apart()) == ["http://node-1"]
    world.nodes[0].clings = False
    await upkeep.round()
    assert await upkeep.fleet.rotation.apart() == {}
    assert set(world.nodes[0].adapters) == {release.adapter for release in releases[1:]}


async def test_residency_is_bounded(world: World) -> None:
    upkeep = await world.started()
    releases = [await world.publish(upkeep, f"seed-{i}") for i in range(6)]
    for node in world.nodes:
        node.adapters["default@cand-1"] = "/candidate"
        assert set(node.adapters) == {"default@cand-1", *(release.adapter for release in releases[-3:])}
    await upkeep.round()
    assert all("default@cand-1" in node.adapters for node in world.nodes), "the evaluator's names are not the publisher's"


async def test_an_engine_that_was_restarted_gets_everything_back(world: World) -> None:
    upkeep = await world.started()
    releases = [await world.publish(upkeep, f"seed-{i}") for i in range(4)]
    world.nodes[0].adapters.clear()
    await upkeep.round()
    assert set(world.nodes[0].adapters) == {release.adapter for release in releases[-3:]}
    assert await upkeep.fleet.rotation.apart() == {}


@pytest.mark.parametrize("kind", ["harness", "routing"])
async def test_what_needs_no_node_moves_the_head_alone(world: World, kind: str) -> None:
    upkeep = await world.started()
    weights = await world.publish(upkeep, "a")
    for node in world.nodes:
        node.down = True
    head = await world.publish(upkeep, "tree", kind=kind)
    assert (head.kind, head.operation, head.adapter) == (kind, "harness", weights.adapter)
    assert head.contents == {**weights.contents, kind: head.content_id}
    for node in world.nodes:
        node.down = False
    later = await world.publish(upkeep, "b")
    assert later.contents[kind] == head.content_id


@pytest.mark.parametrize(
    ("kind", "content_id", "words"),
    [("base", "base", "roll back"), ("lora", "checkpoint-" + "0" * 32, "another kind's")],
)
async def test_what_cannot_be_served(world: World, kind: str, content_id: str | None, words: str) -> None:
    upkeep = await world.started()
    root = await world.head()
    await upkeep.handlers.on_evaluated(evaluated("default", root.release_id, kind=kind, content_id=content_id))
    [(outcome, reason)] = world.rejections()
    assert outcome == "aborted"
    assert words in reason
    assert await world.head() == root


async def test_a_scenario_that_nobody_created(world: World) -> None:
    upkeep = await world.started()
    with pytest.raises(Transient, match="does not exist: create it"):
        await upkeep.handlers.on_evaluated(evaluated("stranger", "r0-000000"))
    command = ScenarioCreateRequested(event_id="cmd-1", at=utc_now(), scenario="stranger")
    await upkeep.handlers.on_command(command)
    await upkeep.handlers.on_command(command)
    await upkeep.handlers.on_command(command.model_copy(update={"event_id": "cmd-2"}))
    assert len(await world.heads.chain("stranger")) == 1
    created = [event for event in world.events.of(ReleasePublished) if event.scenario == "stranger"]
    assert [event.command_id for event in created] == ["cmd-1"]
    incarnations = {LoadId.parse((await world.head(name)).load_id).incarnation for name in ("default", "stranger")}
    assert len(incarnations) == 2


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


async def test_an_emptied_store_is_rebuilt_while_running(world: World) -> None:
    upkeep = await world.started()
    for seed in "abc":
        await world.publish(upkeep, seed)
    target = (await world.heads.chain("default"))[-1]
    await upkeep.handlers.on_command(RollbackRequested(event_id="cmd", at=utc_now(), scenario="default", release_id=target.release_id))
    before = await world.heads.chain("default")
    await world.redis.flushdb()
    await upkeep.round()
    assert await world.heads.chain("default") == before
    assert [release.operation for release in before] == ["rollback", "training", "training", "training", "creation"]
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

    inner = upkeep.publication.heads._inner  # type: ignore[attr-defined]
    inner.advance = away
    with pytest.raises(Unavailable):
        await upkeep.handlers.on_evaluated(event)
    assert world.rejections() == []
    inner.advance = lost
    await upkeep.handlers.on_evaluated(event)
    assert world.rejections() == [("conflicted", "lost")]
    assert all(not node.adapters for node in world.nodes)
