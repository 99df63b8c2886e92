"""Releases of full weights: every node serves the whole of them, or is out of rotation, and none is
ever left paused.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from reefcommon.errors import Poison, Unavailable
from reefcommon.events import RollbackRequested, ScenarioCreateRequested, utc_now
from services.publisher.full_weights import sending
from services.publisher.redis_works import RedisWorks
from tests.publisher.conftest import World
from tests.publisher.fakes import FakeNode, Fuse, Killed, evaluated

pytestmark = pytest.mark.redis

STEPS = ("pause", "start", "transfer", "finish", "reset", "resume")
POINTS = [*(f"{when} {step}" for step in STEPS for when in ("before", "after")), "before verify"]


def once(point: str, act: Callable[[], None]) -> Callable[[str], None]:
    """Does something at the first passage of a point."""
    left = [point]

    def fails(passed: str) -> None:
        if passed in left:
            left.remove(passed)
            act()

    return fails


def raising(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act


async def test_full_weights_are_published_and_rolled_back(world: World) -> None:
    upkeep = await world.started()
    root = await world.head()
    lora = await world.publish(upkeep, "adapter")
    head = await world.publish(upkeep, "full", kind="checkpoint")
    assert (head.kind, head.adapter) == ("checkpoint", None)
    assert head.contents == {"base": "base", "checkpoint": head.content_id}, (
        "an adapter of other weights ends with them"
    )
    for node in world.nodes:
        assert (node.version, node.paused) == (head.content_id, False)
        assert node.steps == list(STEPS)
        assert not node.adapters, "adapters of other base weights are unloaded"
    later = await world.publish(upkeep, "on top")
    assert later.contents["checkpoint"] == head.content_id
    for number, (target, base) in enumerate(
        ((lora, "base"), (head, head.content_id), (root, "base"))
    ):
        command = RollbackRequested(
            event_id=f"cmd-{number}", at=utc_now(), scenario="default", release_id=target.release_id
        )
        await upkeep.handlers.on_command(command)
        back = await world.head()
        assert (back.contents, back.adapter, back.operation) == (
            target.contents,
            target.adapter,
            "rollback",
        )
        for node in world.nodes:
            assert (node.version, node.paused) == (base, False)
            assert target.adapter is None or target.adapter in node.adapters
    await upkeep.round()
    assert await upkeep.fleet.rotation.apart() == {}


async def test_the_adapter_before_stays_until_gateways_have_moved(world: World) -> None:
    """A gateway that has not heard of the new head yet asks for the old one's adapter: it must be
    there for that moment.
    """
    world.drain_s = 3600.0
    upkeep = await world.started()
    before = await world.publish(upkeep, "adapter")
    head = await world.publish(upkeep, "full", kind="checkpoint")
    await upkeep.round()
    for node in world.nodes:
        assert (list(node.adapters), node.version) == ([before.adapter], head.content_id)
    world.nodes[0].adapters.clear()
    world.drain_s = 0.0
    await (await world.started()).round()
    assert [list(node.adapters) for node in world.nodes] == [[], []], (
        "never loaded again below other weights, and unloaded in the end"
    )


async def test_the_same_weights_under_a_new_release_pause_nobody(world: World) -> None:
    """P5 at the publisher: where only the release's name is new, no step of an update is taken."""
    upkeep = await world.started()
    first = await world.publish(upkeep, "full", kind="checkpoint")
    for node in world.nodes:
        node.steps.clear()
    await world.publish(upkeep, "tree", kind="harness")
    await world.publish(upkeep, "adapter")
    command = RollbackRequested(
        event_id="cmd", at=utc_now(), scenario="default", release_id=first.release_id
    )
    await upkeep.handlers.on_command(command)
    assert (await world.head()).content_id == first.content_id
    assert all(node.steps == [] for node in world.nodes)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize(
    "error",
    [Unavailable("cut"), Poison("no"), RuntimeError("a mistake of ours")],
    ids=["away", "refused", "bug"],
)
async def test_whatever_fails_between_pause_and_resume(
    world: World, point: str, error: Exception
) -> None:
    """P2: an error before and after each step on one node.

    It goes on generating, or is out of rotation; the other one is published.
    """
    upkeep = await world.started()
    root = await world.head()
    first, second = world.nodes
    first.fails = once(point, raising(error))
    try:
        await upkeep.handlers.on_evaluated(
            evaluated("default", root.release_id, "full", kind="checkpoint")
        )
    except RuntimeError:
        assert not first.paused or first.url in await upkeep.fleet.rotation.apart(), (
            "a bug is no reason to leave a node paused"
        )
        await upkeep.handlers.resume()
    head = await world.head()
    assert head.kind == "checkpoint"
    assert (second.version, second.paused) == (head.content_id, False)
    apart = await upkeep.fleet.rotation.apart()
    assert first.url in apart or (first.version, first.paused) == (head.content_id, False)
    await upkeep.round()
    await upkeep.round()
    assert await upkeep.fleet.rotation.apart() == {}
    assert (first.version, first.paused) == (head.content_id, False)


async def test_a_node_is_out_of_rotation_until_it_resumes(world: World) -> None:
    """P2: resume itself fails for long."""
    upkeep = await world.started()
    stuck = world.nodes[0]

    def fails(point: str) -> None:
        if point == "before resume":
            raise Unavailable("stuck")

    stuck.fails = fails
    head = await world.publish(upkeep, "full", kind="checkpoint")
    assert head.kind == "checkpoint"
    assert "does not resume: stuck" in (await upkeep.fleet.rotation.apart())[stuck.url]
    await upkeep.round()
    assert stuck.paused
    assert stuck.url in await upkeep.fleet.rotation.apart()
    stuck.fails = lambda _point: None
    await upkeep.round()
    assert not stuck.paused
    assert await upkeep.fleet.rotation.apart() == {}


@pytest.mark.parametrize("step", ["transfer", "finish"])
async def test_a_step_that_hangs_ends_at_its_deadline(
    world: World, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P2: every step has a deadline."""
    upkeep = await world.started()
    hanging = world.nodes[0]

    async def for_ever(*_: object, **__: object) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(hanging, {"transfer": "update", "finish": "finish_update"}[step], for_ever)
    head = await world.publish(upkeep, "full", kind="checkpoint")
    assert head.kind == "checkpoint"
    assert f"to {step}" in (await upkeep.fleet.rotation.apart())[hanging.url]
    assert not hanging.paused


async def test_weights_that_arrive_otherwise_are_not_published(world: World) -> None:
    """P4 for full weights: the checksum of every tensor, and the version that the probe reports."""
    upkeep = await world.started()
    root = await world.head()
    for seed, spoil in (
        ("flip", lambda node: node.tensors.update(a="0" * 64)),
        ("label", lambda node: setattr(node, "version", "else")),
    ):
        bad = world.nodes[1]
        bad.fails = lambda point, node=bad, spoil=spoil: (
            spoil(node) if point == "after finish" else None
        )
        await upkeep.handlers.on_evaluated(
            evaluated("default", root.release_id, seed, kind="checkpoint")
        )
        assert await world.head() == root
        outcome, reason = world.rejections()[-1]
        assert outcome == "aborted"
        assert "http://node-2" in reason
        bad.fails = lambda _point: None
        await upkeep.round()
        assert [node.version for node in world.nodes] == ["base", "base"], (
            "what was staged is taken back"
        )
        assert not any(node.paused for node in world.nodes)
        assert await upkeep.fleet.rotation.apart() == {}


async def test_a_loser_gives_the_weights_back(world: World) -> None:
    """P1 for full weights: the head moved while they were staged."""
    upkeep = await world.started()
    root = await world.head()
    original = upkeep.runner.heads.advance

    async def overtaken(release: object) -> None:
        upkeep.runner.heads._inner.advance = original  # type: ignore[attr-defined]
        await (await world.started()).handlers.on_evaluated(
            evaluated("default", root.release_id, "winner")
        )
        await original(release)  # type: ignore[arg-type]

    upkeep.runner.heads._inner.advance = overtaken  # type: ignore[attr-defined]
    await upkeep.handlers.on_evaluated(
        evaluated("default", root.release_id, "full", kind="checkpoint")
    )
    head = await world.head()
    assert head.kind == "lora"
    assert [outcome for outcome, _ in world.rejections()] == ["conflicted"]
    for node in world.nodes:
        assert node.version == "base"
        assert head.adapter in node.adapters


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("effect", range(24))
async def test_killed_at_any_effect_of_an_update(world: World, when: str, effect: int) -> None:
    """P2 with `kill -9`: nothing of ours runs any more, not even `finally`; the next process leaves
    nobody paused.
    """
    await world.started()
    root = await world.head()
    event = evaluated("default", root.release_id, "full", kind="checkpoint")
    fuse = Fuse(left=effect, after=when == "after")
    try:
        await world.process(fuse).handlers.on_evaluated(event)
    except Killed:
        for url in ("http://node-1", "http://node-2"):
            # Its lease runs out.
            await world.redis.delete(f"reef:{{lease:node-update:{url}}}:holder")
        survivor = await world.started()
        await survivor.handlers.resume()
        await survivor.handlers.on_evaluated(event)
    else:
        assert effect >= len(fuse.calls), "the fuse did not blow"
    last = await world.started()
    await last.round()
    await last.round()
    head = await world.head()
    assert head.candidate_id == event.candidate.event_id
    for node in world.nodes:
        assert (node.version, node.paused) == (head.content_id, False)
    assert await last.fleet.rotation.apart() == {}
    assert await RedisWorks(world.redis, kept_s=600).live() == []


async def test_a_restarted_or_paused_node_is_brought_back(world: World) -> None:
    upkeep = await world.started()
    head = await world.publish(upkeep, "full", kind="checkpoint")
    restarted, paused = world.nodes
    restarted.version, restarted.tensors = "base", {}
    paused.paused = True
    await upkeep.round()
    for node in world.nodes:
        assert (node.version, node.paused) == (head.content_id, False)
    assert await upkeep.fleet.rotation.apart() == {}


async def test_nobody_else_touches_a_node_under_replacement(world: World) -> None:
    upkeep, other = await world.started(), await world.started()
    seen: list[bool] = []
    node = world.nodes[0]

    async def look() -> None:
        await other.round()
        seen.append(node.paused)

    original = node.update

    async def update(*args: object, **kwargs: object) -> None:
        await look()
        await original(*args, **kwargs)  # type: ignore[arg-type]

    node.update = update  # type: ignore[method-assign]
    head = await world.publish(upkeep, "full", kind="checkpoint")
    assert seen == [True], "the other publisher left it paused"
    assert node.version == head.content_id
    assert node.steps == list(STEPS)


async def test_a_lease_ends_with_its_holder_and_its_loss_is_noticed(world: World) -> None:
    lease = (await world.started()).fleet.full.lease  # type: ignore[union-attr]
    async with lease("http://n").during(wait_s=0.1):
        with pytest.raises(Unavailable, match="another process"):
            async with lease("http://n").during(wait_s=0.1):
                pass
    assert not await lease("http://n").taken()
    key = "reef:{lease:node-update:http://n}:holder"

    async def losing() -> None:
        async with lease("http://n").during(wait_s=0.1):
            await world.redis.set(key, "somebody else")
            await asyncio.sleep(60)

    with pytest.raises(Unavailable, match="was lost"):
        await losing()
    assert await world.redis.get(key) == "somebody else"
    assert await lease("http://n").taken()


async def test_a_node_whose_update_was_interrupted_gets_its_weights_again(world: World) -> None:
    """The publisher stops, or loses its lease, in the middle of a transfer."""
    upkeep, begun = await world.started(), asyncio.Semaphore(0)
    originals = [node.update for node in world.nodes]

    async def hanging(*_: object, **__: object) -> None:
        begun.release()
        await asyncio.sleep(60)

    for node in world.nodes:
        node.update = hanging  # type: ignore[method-assign]
    publishing = asyncio.create_task(world.publish(upkeep, "full", kind="checkpoint"))
    for _ in world.nodes:
        await begun.acquire()
    publishing.cancel()
    await asyncio.wait([publishing])
    reasons = await upkeep.fleet.rotation.apart()
    for node, original in zip(world.nodes, originals, strict=True):
        assert (node.paused, reasons[node.url]) == (False, "full weights: interrupted")
        node.update = original  # type: ignore[method-assign]
    survivor = await world.started()
    await survivor.handlers.resume()
    await survivor.round()
    head = await world.head()
    assert head.kind == "checkpoint"
    assert {node.version for node in world.nodes} == {head.content_id}
    assert await survivor.fleet.rotation.apart() == {}


async def test_full_weights_need_nodes_of_their_own(world: World) -> None:
    """They replace the model of every node, so a node that serves them serves one scenario."""
    upkeep = await world.started()
    head = await world.publish(upkeep, "full", kind="checkpoint")
    await upkeep.handlers.on_command(
        ScenarioCreateRequested(event_id="cmd-1", at=utc_now(), scenario="other")
    )
    assert await world.heads.head("other") is None
    back = RollbackRequested(
        event_id="cmd-2", at=utc_now(), scenario="default", release_id=head.parent_id or ""
    )
    await upkeep.handlers.on_command(back)
    await upkeep.handlers.on_command(
        ScenarioCreateRequested(event_id="cmd-3", at=utc_now(), scenario="other")
    )
    assert await world.heads.head("other") is not None
    before = await world.head()
    await upkeep.handlers.on_evaluated(
        evaluated("default", before.release_id, "again", kind="checkpoint")
    )
    assert await world.head() == before
    assert [reason.partition(":")[0] for _, reason in world.rejections()] == [
        f"full weights replace the model of every serving node, and these serve {name} too"
        for name in ("default", "other")
    ]


async def test_full_weights_that_are_off_are_refused_with_the_setting(world: World) -> None:
    world.full = False
    upkeep = await world.started()
    root = await world.head()
    await upkeep.handlers.on_evaluated(
        evaluated("default", root.release_id, "full", kind="checkpoint")
    )
    [(outcome, reason)] = world.rejections()
    assert outcome == "aborted"
    assert "REEF_PUBLISHER_WEIGHT_TRANSFER" in reason
    assert await world.head() == root


def test_the_fake_has_every_step() -> None:
    assert set(POINTS) >= {"before pause", "after resume", "before verify"}
    assert FakeNode().version == "base"


async def test_the_start_of_the_sender_is_not_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine torch takes longer to import than a step may take."""
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\nsleep 0.6\necho 4711\nexec sleep 30\n")
    program.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(program))
    async with sending("gloo", "127.0.0.1", tmp_path, 2, 0.1, within_s=20.0) as port:
        assert port == 4711
    with pytest.raises(Unavailable, match=r"not ready within 0\.1 s"):
        async with sending("gloo", "127.0.0.1", tmp_path, 2, 9.0, within_s=0.1):
            pass
