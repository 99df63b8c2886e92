"""Nodes that come up again: given the heads at once, whatever else is away, and told of when it can
be.
"""

import pytest

from reefcommon.events import ServingSynced
from tests.publisher.conftest import World

pytestmark = pytest.mark.redis


async def test_a_restarted_node_gets_the_head_before_the_start_ends(world: World) -> None:
    """The log is not read yet and the broker does not answer: the heads in Redis are enough."""
    release = await world.publish(await world.started(), "first")
    for node in world.nodes:
        node.adapters.clear()
    told = len(world.events.of(ServingSynced))
    world.events.down = True
    fresh = world.process()
    await fresh.round()
    assert all(release.adapter in node.adapters for node in world.nodes)
    assert fresh.apart == {}
    assert fresh.synced
    world.events.down = False
    await fresh.start()
    await fresh.round()
    assert len(world.events.of(ServingSynced)) == told + len(world.nodes)
    await fresh.round()
    assert len(world.events.of(ServingSynced)) == told + len(world.nodes), "once"


async def test_without_heads_the_nodes_wait_for_the_log(world: World) -> None:
    fresh = world.process()
    await fresh.round()
    assert not fresh.synced
    await fresh.start()
    await fresh.round()
    assert fresh.synced


async def test_at_rest_every_second_turn_is_left_out(world: World) -> None:
    publisher = await world.started()
    release = await world.publish(publisher, "first")
    await publisher.turn()
    (node, *_) = world.nodes
    node.down = True
    await publisher.turn()
    assert publisher.apart == {}, "left out"
    await publisher.turn()
    assert node.url in publisher.apart
    node.down = False
    node.adapters.clear()
    await publisher.turn()
    assert release.adapter in node.adapters, "none is left out while a node is out of rotation"
    assert publisher.apart == {}
