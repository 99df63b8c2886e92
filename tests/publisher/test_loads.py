"""Loads count the changes of one group of kinds, and a candidate ages with its own group alone."""

from typing import Any

import pytest

from reefcommon.config import parse
from reefcommon.errors import Conflict
from reefcommon.events import (
    CandidateEvaluated,
    CandidateProposed,
    Kind,
    Release,
    RollbackRequested,
    utc_now,
)
from reefcommon.ids import LoadId
from reefcommon.releases import loads_of
from tests.publisher.conftest import World
from tests.publisher.fakes import evaluated

pytestmark = pytest.mark.redis


def sequences(release: Release) -> tuple[int, int, int]:
    """The load sequence of (weights, harness, routing)."""
    loads = loads_of(release)
    weights, harness, routing = (
        LoadId.parse(loads[group]).sequence for group in ("weights", "harness", "routing")
    )
    return weights, harness, routing


async def roll_back(world: World, upkeep: Any, target: str, number: int) -> Release:
    command = RollbackRequested(
        event_id=f"cmd-{number}", at=utc_now(), scenario="default", release_id=target
    )
    await world.command(upkeep, command)
    return await world.head()


async def test_a_load_advances_if_its_own_contents_change(world: World) -> None:
    upkeep = await world.started()
    root = await world.head()
    assert sequences(root) == (0, 0, 0)
    harness = await world.publish(upkeep, "h", kind="harness")
    assert sequences(harness) == (0, 1, 0)
    assert harness.load_id == root.load_id
    weights = await world.publish(upkeep, "w")
    assert sequences(weights) == (1, 1, 0)
    again = await world.publish(upkeep, "i", kind="harness")
    assert sequences(again) == (1, 2, 0)
    assert again.load_id == weights.load_id == weights.loads["weights"]
    back = await roll_back(world, upkeep, harness.release_id, 1)
    assert sequences(back) == (2, 3, 0), "other weights and another harness"
    back = await roll_back(world, upkeep, root.release_id, 2)
    assert sequences(back) == (2, 4, 0), "the same weights, no harness"


async def test_a_solution_ages_nothing_but_solutions_and_needs_no_node(world: World) -> None:
    upkeep = await world.started()
    weights = await world.publish(upkeep, "w")
    for node in world.nodes:
        node.down = True
    solution = await world.publish(upkeep, "s", kind="solution")
    assert sequences(solution) == (1, 0, 0)
    assert solution.loads["solution"] != weights.loads["solution"]
    assert (solution.operation, solution.adapter) == ("training", weights.adapter)
    assert solution.contents == weights.contents | {"solution": solution.content_id}


async def test_a_solution_that_lost_a_race_is_compared_again(world: World) -> None:
    upkeep = await world.started()
    root = await world.head()
    late = evaluated("default", root.release_id, "late", kind="solution")
    await world.publish(upkeep, "early", kind="solution")
    await upkeep.handlers.on_evaluated(late)
    assert world.events.of(CandidateProposed) == [late.candidate]
    assert world.rejections() == []


async def test_an_old_chain_without_loads_is_continued(world: World) -> None:
    upkeep = await world.started()
    old = (await world.publish(upkeep, "w")).model_copy(update={"loads": {}})
    key = "reef:{default}:releases"
    await world.redis.hset(key, old.release_id, old.model_dump_json())  # type: ignore[misc]
    assert sequences(old) == (1, 1, 1)
    assert sequences(await world.publish(upkeep, "h", kind="harness")) == (1, 2, 1)


def compared(event: CandidateEvaluated, head: Release) -> CandidateEvaluated:
    evaluation = event.evaluation.model_copy(update={"head_release_id": head.release_id})
    return event.model_copy(update={"evaluation": evaluation, "event_id": "evl-again"})


@pytest.mark.parametrize(("ours", "others"), [("lora", "harness"), ("harness", "lora")])
async def test_a_head_moved_by_another_kind_requeues_the_candidate(
    world: World, ours: Kind, others: Kind
) -> None:
    upkeep = await world.started()
    event = evaluated("default", (await world.head()).release_id, "ours", kind=ours)
    head = await world.publish(upkeep, "other", kind=others)
    for _ in range(2):
        await upkeep.handlers.on_evaluated(event)
    assert world.rejections() == []
    assert world.events.of(CandidateProposed) == [event.candidate]
    await upkeep.handlers.on_evaluated(compared(event, head))
    merged = await world.head()
    assert (merged.parent_id, merged.candidate_id) == (head.release_id, event.candidate.event_id)
    assert {ours, others} <= merged.contents.keys()
    await upkeep.handlers.on_evaluated(compared(event, head))
    assert await world.head() == merged


async def test_a_race_for_the_head_has_the_candidate_judged_again(world: World) -> None:
    upkeep = await world.started()
    event = evaluated("default", (await world.head()).release_id, "ours")
    heads = upkeep.runner.heads._inner  # type: ignore[attr-defined]
    advance = heads.advance

    async def lose(_release: Release) -> None:
        heads.advance = advance
        await world.publish(upkeep, "other", kind="harness")
        raise Conflict("lost")

    heads.advance = lose
    await upkeep.handlers.on_evaluated(event)
    assert world.events.of(CandidateProposed) == [event.candidate]
    assert world.rejections() == []
    assert all(not node.adapters for node in world.nodes), "it is not staged any more"
    head = await world.head()
    await upkeep.handlers.on_evaluated(compared(event, head))
    assert (await world.head()).candidate_id == event.candidate.event_id


@pytest.mark.parametrize(
    ("on_stale", "others", "requeued"),
    [
        ("refuse", "harness", False),
        ("merge", "lora", False),
        ("merge", "solution", True),
        ("reevaluate", "lora", True),
        ("reevaluate", "checkpoint", False),
    ],
)
async def test_on_stale_says_whether_a_conflict_is_final(
    world: World, on_stale: str, others: Kind, *, requeued: bool
) -> None:
    recipe = "recipes.sao.recipe:SAORecipe"
    world.config = parse(f"reef: {{recipe: '{recipe}', on_stale: {on_stale}}}")
    upkeep = await world.started()
    event = evaluated("default", (await world.head()).release_id, "ours")
    await world.publish(upkeep, "other", kind=others)
    await upkeep.handlers.on_evaluated(event)
    assert bool(world.events.of(CandidateProposed)) is requeued
    assert [outcome for outcome, _ in world.rejections()] == ["conflicted"] * (not requeued)
