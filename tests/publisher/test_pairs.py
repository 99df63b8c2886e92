"""A LoRA and a harness that were judged together: one release, or none, for both."""

import pytest

from reefcommon.events import (
    CandidateEvaluated,
    CandidateProposed,
    PromoteRequested,
    ReleasePending,
    ReleaseRejected,
    utc_now,
)
from reefcommon.releases import loads_of
from tests.publisher.conftest import REVIEWED, World
from tests.publisher.fakes import evaluated

pytestmark = pytest.mark.redis


async def pair(world: World) -> CandidateEvaluated:
    head = await world.head()
    partner = evaluated("default", head.release_id, "rule", kind="harness").candidate
    event = evaluated("default", head.release_id, "weights")
    return event.model_copy(update={"partner": partner})


def joined(event: CandidateEvaluated) -> CandidateEvaluated:
    """The verdict on the partner, which comes too."""
    assert event.partner is not None
    about = {"candidate": event.partner, "partner": None, "joined": event.candidate.event_id}
    return event.model_copy(update={"event_id": "evl-2", **about})


async def test_both_become_one_release(world: World) -> None:
    upkeep = await world.started()
    root, event = await world.head(), await pair(world)
    assert event.partner is not None
    for each in (joined(event), event, event, joined(event)):
        await upkeep.handlers.on_evaluated(each)
    head = await world.head()
    assert head.parent_id == root.release_id
    assert head.contents["lora"] == event.candidate.content_id
    assert head.contents["harness"] == event.partner.content_id
    assert head.partner is not None
    assert head.partner.candidate_id == event.partner.event_id
    assert head.adapter in world.nodes[0].adapters
    for group in ("weights", "harness"):
        assert loads_of(head)[group] != loads_of(root)[group]
    assert world.rejections() == []


async def test_a_conflict_has_both_judged_again(world: World) -> None:
    upkeep = await world.started()
    event = await pair(world)
    await world.publish(upkeep, "solved", kind="solution")
    await upkeep.handlers.on_evaluated(event)
    assert world.events.of(CandidateProposed) == [event.candidate, event.partner]
    assert world.rejections() == []


async def test_a_pair_that_no_node_takes_is_refused_with_both_names(world: World) -> None:
    upkeep = await world.started()
    for node in world.nodes:
        node.full = True
    event = await pair(world)
    assert event.partner is not None
    await upkeep.handlers.on_evaluated(event)
    told = [rejected.candidate_id for rejected in world.events.of(ReleaseRejected)]
    assert told == [event.candidate.event_id, event.partner.event_id]


async def test_a_pair_that_waits_for_a_person_is_promoted_whole(world: World) -> None:
    world.config = REVIEWED
    upkeep = await world.started()
    event = await pair(world)
    assert event.partner is not None
    await upkeep.handlers.on_evaluated(event)
    (pending,) = [pending.release for pending in world.events.of(ReleasePending)]
    command = {"event_id": "cmd-1", "at": utc_now(), "scenario": "default"}
    await world.command(upkeep, PromoteRequested(**command, release_id=pending.release_id))
    head = await world.head()
    assert head.release_id == pending.release_id
    assert head.contents["harness"] == event.partner.content_id
