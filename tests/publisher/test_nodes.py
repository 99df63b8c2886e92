"""Serving nodes that lie, refuse, fall silent or come back while releases go on."""

import asyncio
import shutil
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from structlog.testing import capture_logs

from reefcommon.errors import Poison, Slow, Transient, Unavailable
from reefcommon.events import RollbackRequested, ServingSynced, utc_now
from tests.publisher.conftest import World
from tests.publisher.fakes import evaluated

pytestmark = pytest.mark.redis
Load = Callable[[str, str], Coroutine[Any, Any, None]]


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
    assert {event.node for event in world.events.of(ServingSynced)} == {
        "http://node-1",
        "http://node-2",
    }


async def test_a_node_that_hangs_while_it_loads_holds_up_no_release(world: World) -> None:
    upkeep = await world.started()
    world.nodes[0].hangs = True
    async with asyncio.timeout(60):
        head = await world.publish(upkeep, "a")
    assert head.sequence == 1
    assert "took longer than 2 s" in (await upkeep.fleet.rotation.apart())["http://node-1"]
    world.nodes[0].hangs = False
    await upkeep.round()
    assert await upkeep.fleet.rotation.apart() == {}
    assert list(world.nodes[0].adapters) == [head.adapter]


async def test_a_node_that_is_set_apart_has_no_say(world: World) -> None:
    upkeep = await world.started()
    world.nodes[0].lies = True
    await upkeep.fleet.set_apart(world.nodes[0].url, "it answers as another model")
    assert (await world.publish(upkeep, "a")).sequence == 1
    assert {event.node for event in world.events.of(ServingSynced)} == {world.nodes[1].url}


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
    assert (
        apart["http://node-1"]
        == f"http://node-1 refuses to unload {releases[0].adapter}: requests are running"
    )
    assert (await world.head()).adapter in world.nodes[1].adapters
    assert releases[0].adapter in world.nodes[0].adapters
    await upkeep.round()
    assert list(await upkeep.fleet.rotation.apart()) == ["http://node-1"]
    world.nodes[0].clings = False
    await upkeep.round()
    assert await upkeep.fleet.rotation.apart() == {}
    assert set(world.nodes[0].adapters) == {release.adapter for release in releases[1:]}


async def test_an_adapter_that_clings_keeps_no_other_on_its_node(world: World) -> None:
    upkeep, [node, _] = await world.started(), world.nodes
    node.adapters |= {"default@r8-000000": "/clings", "default@r9-000000": "/goes"}
    unload = node.unload_adapter

    async def clings(name: str) -> None:
        if name == "default@r8-000000":
            raise Transient("requests are running")
        await unload(name)

    node.unload_adapter = clings  # type: ignore[method-assign]
    await upkeep.runner.tidy("default")
    assert list(node.adapters) == ["default@r8-000000"]
    assert await upkeep.fleet.rotation.apart() == {node.url: "requests are running"}


async def test_residency_is_bounded(world: World) -> None:
    upkeep = await world.started()
    releases = [await world.publish(upkeep, f"seed-{i}") for i in range(6)]
    for node in world.nodes:
        node.adapters["default@cand-1"] = "/candidate"
        assert set(node.adapters) == {
            "default@cand-1",
            *(release.adapter for release in releases[-3:]),
        }
    await upkeep.round()
    assert all("default@cand-1" in node.adapters for node in world.nodes), (
        "the evaluator's names are not the publisher's"
    )


async def test_an_engine_that_was_restarted_gets_everything_back(world: World) -> None:
    upkeep = await world.started()
    releases = [await world.publish(upkeep, f"seed-{i}") for i in range(4)]
    world.nodes[0].adapters.clear()
    await upkeep.round()
    assert set(world.nodes[0].adapters) == {release.adapter for release in releases[-3:]}
    assert await upkeep.fleet.rotation.apart() == {}


async def test_what_needs_no_node_moves_the_head_alone(world: World) -> None:
    upkeep = await world.started()
    weights = await world.publish(upkeep, "a")
    for node in world.nodes:
        node.down = True
    head = await world.publish(upkeep, "tree", kind="harness")
    assert (head.kind, head.operation, head.adapter) == ("harness", "harness", weights.adapter)
    assert head.contents == {**weights.contents, "harness": head.content_id}
    for node in world.nodes:
        node.down = False
    later = await world.publish(upkeep, "b")
    assert later.contents["harness"] == head.content_id


async def test_a_release_that_no_node_takes_in_time_is_refused(world: World) -> None:
    """It gets a verdict, and the next one does not wait behind it."""
    upkeep = await world.started()
    root = await world.head()
    event = evaluated("default", root.release_id)
    for node in world.nodes:
        node.down = True
    for world.late_s in (0.0, 50.0):
        with pytest.raises(Unavailable):
            await upkeep.handlers.on_evaluated(event)
    world.late_s = 101.0
    await upkeep.handlers.on_evaluated(event)
    [(outcome, reason)] = world.rejections()
    assert outcome == "aborted"
    assert reason.startswith("not published within 100 s: no serving node took")
    for node in world.nodes:
        node.down = False
    assert (await world.publish(upkeep, "b")).parent_id == root.release_id


@pytest.mark.parametrize("where", ["store", "node"])
async def test_the_deadline_holds_whatever_is_away(
    world: World, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    upkeep = await world.started()

    def away(*_: object) -> None:
        raise Unavailable("lakeFS does not answer")

    if where == "store":
        monkeypatch.setattr(world.store, "get", away)
    for node in world.nodes:
        node.down = where == "node"
    command = RollbackRequested(event_id="cmd-1", at=utc_now(), scenario="default", release_id="")
    event = evaluated("default", (await world.head()).release_id)
    with pytest.raises(Unavailable):
        await upkeep.handlers.on_evaluated(event)
    world.late_s = 200.0
    upkeep = await world.started()
    await upkeep.handlers.resume()
    assert [outcome for outcome, _ in world.rejections()] == ["aborted"]
    await world.command(upkeep, command)
    assert len(world.rejections()) == 2


async def test_a_slow_node_stays_in_rotation_for_a_while(world: World) -> None:
    upkeep = await world.started()
    await world.publish(upkeep, "a")
    upkeep.slow_for_s = 1000.0

    async def slow() -> dict[str, str | None]:
        raise Slow("http://node-1 did not answer /v1/models within 10 s")

    models = world.nodes[0].models
    world.nodes[0].models = slow  # type: ignore[method-assign]
    await upkeep.round()
    assert await upkeep.fleet.rotation.apart() == {}
    upkeep.slow_for_s = 0.0
    await upkeep.round()
    assert list(await upkeep.fleet.rotation.apart()) == ["http://node-1"]
    world.nodes[0].models = models  # type: ignore[method-assign]
    await upkeep.round()
    assert await upkeep.fleet.rotation.apart() == {}


@pytest.mark.parametrize("lost", ["head", "older"])
async def test_a_lost_content_costs_its_own_scenario_alone(world: World, lost: str) -> None:
    """The engines are started anew, and the store has lost a content of one scenario."""
    upkeep = await world.started()
    mine = await world.publish(upkeep, "mine")
    await upkeep.handlers.create("other")
    others = []
    for seed in "ab":
        root = await world.head("other")
        await upkeep.handlers.on_evaluated(evaluated("other", root.release_id, seed))
        others.append(await world.head("other"))
    gone, left = others if lost == "older" else reversed(others)
    world.store.damaged.add(gone.content_id)
    upkeep = world.process()
    await upkeep.start()
    shutil.rmtree(upkeep.fleet.staging)
    for node in world.nodes:
        node.adapters.clear()
    with capture_logs() as logs:
        for _ in range(3):
            await upkeep.round()
            assert await upkeep.fleet.rotation.apart() == {}
    for node in world.nodes:
        assert set(node.adapters) == {mine.adapter, left.adapter}
    assert await upkeep.check() is None
    [reason] = {row["reason"] for row in logs if row["event"] == "adapter_lost"}
    assert gone.content_id in reason
    assert list(upkeep.facts()["lost"]()) == [gone.adapter]
    world.store.damaged.clear()
    for _ in range(2):
        await upkeep.round()
    assert gone.adapter in world.nodes[0].adapters
    assert upkeep.facts()["lost"]() == {}


async def test_a_refused_adapter_costs_its_own_scenario_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The nodes are started anew with a smaller rank than one scenario's adapter has."""
    upkeep = await world.started()
    heads = []
    for name in ("large", "small", "smaller"):
        await upkeep.handlers.create(name)
        root = await world.head(name)
        await upkeep.handlers.on_evaluated(evaluated(name, root.release_id))
        heads.append(await world.head(name))
    large, *others = (head.adapter for head in heads)

    def limited(load: Load) -> Load:
        async def load_adapter(name: str, path: str) -> None:
            if name == large:
                raise Poison("refused /v1/load_lora_adapter with 400: the rank is 16, the limit 8")
            await load(name, path)

        return load_adapter

    for node in world.nodes:
        node.adapters.clear()
        monkeypatch.setattr(node, "load_adapter", limited(node.load_adapter))
    upkeep = world.process()
    await upkeep.start()
    for _ in range(3):
        await upkeep.round()
        assert await upkeep.fleet.rotation.apart() == {}
    assert all(set(node.adapters) == set(others) for node in world.nodes)
    assert await upkeep.check() is None
    [(name, reason)] = upkeep.facts()["lost"]().items()
    assert name == large
    assert "the rank is 16" in reason
    assert reason.endswith("or roll large back")
    monkeypatch.undo()
    await upkeep.round()
    assert all(large in node.adapters for node in world.nodes)
    await upkeep.round()
    assert upkeep.facts()["lost"]() == {}
