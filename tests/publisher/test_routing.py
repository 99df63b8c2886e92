"""Routing policies in the publisher: their releases are loaded before the head moves, and stay."""

import json

import pytest

from reefcommon.config import parse
from reefcommon.events import (
    PromoteRequested,
    Release,
    ReleasePending,
    RollbackRequested,
    utc_now,
)
from services.publisher.upkeep import Upkeep
from tests.publisher.conftest import REVIEWED, World
from tests.publisher.fakes import FakeNode, Fuse, Killed, evaluated

pytestmark = pytest.mark.redis


async def route(world: World, upkeep: Upkeep, recipe: str = "", **policy: object) -> Release:
    text = json.dumps(policy)
    return await world.publish(upkeep, text, kind="routing", recipe=recipe)


async def aged(world: World) -> tuple[Upkeep, list[Release]]:
    """A chain of more adapters than stay resident; newest first."""
    world.config = parse(
        "reef: {recipe: 'recipes.sao.recipe:SAORecipe'}\nserving: {resident_adapters: 2}\n"
    )
    upkeep = await world.started()
    for seed in "abcd":
        await world.publish(upkeep, seed)
    await upkeep.round()
    return upkeep, await world.heads.chain("default")


def loaded(world: World) -> list[set[str]]:
    return [set(node.adapters) for node in world.nodes]


async def test_an_old_release_is_loaded_before_the_policy_serves_and_stays(world: World) -> None:
    upkeep, chain = await aged(world)
    old = chain[3]
    assert all(old.adapter not in names for names in loaded(world))
    head = await route(world, upkeep, shares={old.release_id: 0.1})
    assert (head.kind, head.operation, head.adapter) == ("routing", "routing", chain[0].adapter)
    assert head.contents["lora"] == chain[0].contents["lora"]
    assert head.load_id == chain[0].load_id, "the weights are as old as before"
    for _ in range(2):
        await upkeep.round()
        assert all(old.adapter in names for names in loaded(world))
    world.nodes.append(FakeNode("http://node-3"))
    upkeep = await world.started()
    await upkeep.round()
    assert old.adapter in world.nodes[2].adapters, "a new node gets it too"
    await world.publish(upkeep, "e")
    await upkeep.round()
    assert all(old.adapter in names for names in loaded(world)), "a new head keeps the policy"
    await route(world, upkeep)
    await upkeep.round()
    assert all(old.adapter not in names for names in loaded(world))


async def test_a_release_that_waits_is_loaded_and_its_promotion_ends_the_trial(
    world: World,
) -> None:
    world.config = REVIEWED
    upkeep = await world.started()
    await upkeep.handlers.on_evaluated(evaluated("default", (await world.head()).release_id))
    (pending,) = [event.release for event in world.events.of(ReleasePending)]
    head = await route(world, upkeep, rules=[rule("client", "beta", pending.release_id)])
    assert head.kind == "routing", "a person's policy waits for no other person"
    await upkeep.round()
    assert all(pending.adapter in names for names in loaded(world))
    command = {"event_id": "cmd-1", "at": utc_now(), "scenario": "default"}
    await world.command(upkeep, PromoteRequested(**command, release_id=pending.release_id))
    head = await world.head()
    assert (head.release_id, head.operation) == (pending.release_id, "promote")
    assert "routing" not in head.contents


def rule(tag: str, value: str, release: str) -> dict[str, str]:
    return {"tag": tag, "value": value, "release": release}


@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ({"shares": {"r9-none": 0.1}}, "names r9-none, and there is no such release"),
        ({"shares": {"r9-none": 2}}, "not a routing policy"),
        ({"share": {}}, "not a routing policy"),
    ],
)
async def test_a_policy_that_cannot_be_followed_is_refused_with_the_reason(
    world: World, policy: dict[str, object], says: str
) -> None:
    upkeep = await world.started()
    before = await world.head()
    assert await route(world, upkeep, **policy) == before
    ((outcome, reason),) = world.rejections()
    assert outcome == "aborted"
    assert says in reason


async def test_a_release_that_no_node_can_load_is_refused(world: World) -> None:
    upkeep, chain = await aged(world)
    for node in world.nodes:
        node.full = True
    head = await route(world, upkeep, shares={chain[3].release_id: 0.5})
    assert head == chain[0]
    assert "no slot" in world.rejections()[-1][1]


async def test_a_release_on_other_base_weights_is_refused(world: World) -> None:
    upkeep = await world.started()
    first = await world.publish(upkeep, "a")
    head = await world.publish(upkeep, "whole", kind="checkpoint")
    assert await route(world, upkeep, shares={first.release_id: 0.5}) == head
    assert "other base weights" in world.rejections()[-1][1]


async def test_a_share_for_the_content_that_serves_is_refused(world: World) -> None:
    upkeep, chain = await aged(world)
    assert await route(world, upkeep, shares={chain[0].release_id: 0.5}) == chain[0]
    assert "serves already" in world.rejections()[-1][1]
    back = {"event_id": "cmd-1", "at": utc_now(), "scenario": "default"}
    await world.command(upkeep, RollbackRequested(**back, release_id=chain[2].release_id))
    head = await world.head()
    assert await route(world, upkeep, shares={chain[2].release_id: 0.5}) == head, "rolled back to"
    kept = await route(world, upkeep, rules=[rule("client", "stable", chain[2].release_id)])
    assert kept.kind == "routing", "a rule keeps its sessions when the head moves on"


async def test_a_rollback_to_before_the_policy_ends_it(world: World) -> None:
    upkeep, chain = await aged(world)
    await route(world, upkeep, shares={chain[3].release_id: 0.5})
    command = {"event_id": "cmd-1", "at": utc_now(), "scenario": "default"}
    await world.command(upkeep, RollbackRequested(**command, release_id=chain[1].release_id))
    assert "routing" not in (await world.head()).contents


async def test_a_kill_at_any_effect_leaves_the_policy_served_once(world: World) -> None:
    effects = 0
    for position in range(40):
        await world.redis.flushdb()
        for node in world.nodes:
            node.adapters.clear()
        world.events.sent.clear()
        _, chain = await aged(world)
        text = json.dumps({"shares": {chain[3].release_id: 0.5}})
        event = evaluated("default", chain[0].release_id, text, kind="routing", recipe="")
        fuse = Fuse(left=position)
        try:
            await world.process(fuse).handlers.on_evaluated(event)
        except Killed:
            effects += 1
            again = await world.started()
            await again.handlers.on_evaluated(event)
            await again.round()
        found = await world.heads.chain("default")
        assert [release.kind for release in found].count("routing") == 1
        assert all(chain[3].adapter in names for names in loaded(world))
        if not fuse.blown:
            break
    assert effects >= 6
