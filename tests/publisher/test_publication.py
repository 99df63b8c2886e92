"""The publisher's state machine on a real Valkey: one release a candidate, or a reason why not."""

import asyncio
from typing import Any

import pytest

from reefcommon.errors import Transient
from reefcommon.events import ReleasePublished, ScenarioCreateRequested, ServingSynced, utc_now
from reefcommon.ids import LoadId
from services.publisher.domain.work import Work
from tests.publisher.conftest import World
from tests.publisher.fakes import Fuse, Killed, content, evaluated

pytestmark = pytest.mark.redis


async def test_a_winner_becomes_the_head(world: World) -> None:
    upkeep = await world.started()
    root = await world.head()
    assert (root.kind, root.content_id, root.adapter, root.operation, root.sequence) == (
        "base",
        "base",
        None,
        "creation",
        0,
    )
    event = evaluated("default", root.release_id)
    await upkeep.handlers.on_evaluated(event)
    head = await world.head()
    assert head.parent_id == root.release_id
    assert (head.sequence, head.operation, head.candidate_id) == (
        1,
        "training",
        event.candidate.event_id,
    )
    assert head.contents == {"base": "base", "lora": event.candidate.content_id}
    assert head.evaluation == event.evaluation
    assert LoadId.parse(head.load_id).lag_behind(LoadId.parse(root.load_id)) == -1
    assert head.adapter == f"default@{head.release_id}"
    for node in world.nodes:
        assert list(node.adapters) == [head.adapter]
    assert [event.release for event in world.events.of(ReleasePublished)] == [root, head]
    synced = world.events.of(ServingSynced)
    assert {event.node for event in synced} == {node.url for node in world.nodes}
    assert len({event.event_id for event in synced}) == len(world.nodes)


async def test_repeats_have_one_effect(world: World) -> None:
    upkeep = await world.started()
    event = evaluated("default", (await world.head()).release_id)
    for process in (upkeep, upkeep, await world.started()):
        await process.handlers.on_evaluated(event)
    assert len(world.events.of(ReleasePublished)) == 2
    assert len(await world.heads.chain("default")) == 2
    assert world.rejections() == []


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [("reject", "reject it"), ("evaluation_failed", "evaluation_failed: evaluation_failed it")],
)
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
    """P1: exactly one wins; the other leaves no release and no adapter, and its candidate is
    told.
    """
    await world.started()
    root = await world.head()
    processes = [world.process() for _ in range(8)]
    rivals = [evaluated("default", root.release_id, f"rival-{i}") for i in range(8)]
    await asyncio.gather(
        *(p.handlers.on_evaluated(rival) for p, rival in zip(processes, rivals, strict=True))
    )
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
    assert world.rejections() == [
        ("conflicted", f"compared with {root.release_id}, but {head.release_id} is the head")
    ]
    assert await world.head() == head


async def test_a_damaged_artifact(world: World) -> None:
    upkeep = await world.started()
    root = await world.head()
    world.store.damaged.add(content("lora", "a"))
    await upkeep.handlers.on_evaluated(evaluated("default", root.release_id, "a"))
    assert await world.head() == root
    assert "does not match its manifest" in world.rejections()[0][1]


@pytest.mark.parametrize(
    ("kind", "content_id", "words"),
    [("base", "base", "roll back"), ("lora", "checkpoint-" + "0" * 32, "of another kind")],
)
async def test_what_cannot_be_served(
    world: World, kind: str, content_id: str | None, words: str
) -> None:
    upkeep = await world.started()
    root = await world.head()
    await upkeep.handlers.on_evaluated(
        evaluated("default", root.release_id, kind=kind, content_id=content_id)
    )
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
    incarnations = {
        LoadId.parse((await world.head(name)).load_id).incarnation
        for name in ("default", "stranger")
    }
    assert len(incarnations) == 2


async def test_tidying_spares_a_release_that_is_being_published(world: World) -> None:
    """Between its look at the works and its look at the chain: it is seen in the one or in the
    other.
    """
    await world.started()
    event = evaluated("default", (await world.head()).release_id)
    with pytest.raises(Killed):
        await world.process(Fuse(left=3)).handlers.on_evaluated(event)
    tidying: Any = world.process().runner
    [staged] = await tidying.works.live()

    def looked(look: Any) -> Any:
        async def then_published(*args: object, **options: object) -> object:
            found = await look(*args, **options)
            await world.process().handlers.on_evaluated(event)
            return found

        return then_published

    tidying.works.live, tidying.heads.chain = (
        looked(tidying.works.live),
        looked(tidying.heads.chain),
    )
    assert staged.planned.adapter in await tidying.kept("default")
    assert await world.process().runner.works.live() == []


async def test_scenarios_leave_each_others_adapters_alone(world: World) -> None:
    upkeep = await world.started()
    await upkeep.handlers.on_command(
        ScenarioCreateRequested(event_id="cmd-1", at=utc_now(), scenario="other")
    )
    await upkeep.handlers.on_evaluated(evaluated("other", (await world.head("other")).release_id))
    await world.publish(upkeep, "a")
    for node in world.nodes:
        assert set(node.adapters) == {
            (await world.head(name)).adapter for name in ("default", "other")
        }
        assert len(node.loads) == 2


async def test_nothing_begins_while_a_tidying_is_at_work(world: World) -> None:
    """It has looked already at what is under way: what begins now might count on an adapter that it
    is about to unload.
    """
    upkeep, [node, _] = await world.started(), world.nodes
    work = Work(work_id="cmd-1", scenario="default", release=await world.head())
    runner, unload, order = upkeep.runner, node.unload_adapter, []
    node.adapters["default@r9-000000"] = "/left"

    async def begin() -> None:
        await runner.begin(work)
        order.append("begun")

    async def slowly(name: str) -> None:
        begun.append(asyncio.create_task(begin()))
        await asyncio.wait(begun, timeout=0.2)
        await unload(name)
        order.append("unloaded")

    begun: list[asyncio.Task[None]] = []
    node.unload_adapter = slowly  # type: ignore[method-assign]
    await runner.tidy("default")
    await asyncio.gather(*begun)
    assert order == ["unloaded", "begun"]
