"""Trials in the background: scenarios side by side, and no candidate is forgotten."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from reefcommon.errors import Unavailable
from reefcommon.events import CandidateEvaluated, CandidateProposed, Release
from reefkit.redis_heads import RedisReleaseHeads
from reefkit.redis_lease import RedisLease
from tests.evaluator.conftest import TASKS, World, candidate

pytestmark = pytest.mark.redis


async def other_scenario(world: World) -> CandidateProposed:
    assert world.head is not None
    fields: dict[str, Any] = {"scenario": "other", "release_id": "r0-other"}
    release: Release = world.head.model_copy(update=fields)
    await RedisReleaseHeads(world.redis).advance(release)
    event = candidate(base="r0-other").model_copy(update={"scenario": "other"})
    world.nodes[0].answer = lambda model, *_: "good" if "cand" in model else "x"
    return event


async def test_a_scenario_does_not_wait_for_the_trial_of_another(world: World) -> None:
    theirs = await other_scenario(world)
    hold = asyncio.Event()
    chat = world.nodes[0].chat

    async def slow(model: str, *args: Any, **params: Any) -> Any:
        if model.startswith("default@cand"):
            await hold.wait()
        return await chat(model, *args, **params)

    world.nodes[0].chat = slow  # type: ignore[method-assign]
    process = await world.process()
    await process.on_candidate(candidate())
    await process.on_candidate(theirs)
    async with asyncio.timeout(10):
        while not world.verdicts():
            await asyncio.sleep(0.01)
    assert [event.scenario for event in world.events.of(CandidateEvaluated)] == ["other"]
    hold.set()
    await process.trials.settled()
    assert len(world.verdicts()) == 2


async def test_a_candidate_that_arrives_during_a_trial_is_next(world: World) -> None:
    process = await world.process()
    await process.on_candidate(candidate("a"))
    await process.on_candidate(candidate("b"))
    await process.trials.settled()
    assert len(world.verdicts()) == 2


async def test_another_process_holds_the_scenario(world: World) -> None:
    process = await world.process()
    async with RedisLease(world.redis, "trials:default").during(wait_s=0):
        await world.on_candidate(candidate(), process)
        assert world.verdicts() == []
    await world.look(process)
    assert len(world.verdicts()) == 1


@pytest.mark.parametrize("running", [True, False])
async def test_an_emptied_store_is_filled_from_the_log(world: World, *, running: bool) -> None:
    process = await world.process()
    await process.trials.round()
    await world.redis.flushdb()
    world.log.candidates = [candidate()]
    await world.advance_again()
    await world.look(process if running else None)
    assert [found.verdict for found in world.verdicts()] == ["select"]


async def test_the_looks_at_a_head_are_counted_and_survive_an_emptied_store(world: World) -> None:
    """Two candidates that are no better spend the head's budget; then the store is lost."""
    world.text = TASKS + ", error_per: head}"
    for seed in "ab":
        world.nodes[0].answer = lambda *_: "same"
        assert "look 2" in (await world.verdict(candidate(seed))).reason or seed == "a"
    again = await world.verdict(candidate("b"))
    assert "look 2 at this head" in again.reason, "a repeat is not a further look"
    world.log.verdicts = world.events.of(CandidateEvaluated)
    await world.redis.flushdb()
    await world.advance_again()
    world.nodes[0].answer = lambda model, *_: "good" if "cand" in model else "x"
    third = await world.verdict(candidate("c"))
    assert third.verdict == "reject", "five wins of five"
    assert "p <= 0.006755 (p = 0.0312, at least +3, look 3 at this head)" in third.reason
    await world.advance("r1-000000")
    fourth = await world.verdict(candidate("d", base="r1-000000"))
    assert fourth.verdict == "select", "a new head has a new budget"


async def test_a_mistake_of_ours_becomes_a_verdict_at_last(world: World) -> None:
    """A dead letter instead would leave the trainer without an answer."""
    process = await world.process()

    async def broken(_candidate: CandidateProposed) -> None:
        raise KeyError("oh")

    object.__setattr__(process.trials, "judge", type("J", (), {"judge": staticmethod(broken)})())
    await process.on_candidate(candidate())
    await process.trials.settled()
    for _ in range(5):
        assert world.verdicts() == []
        await process.trials.round()
        await process.trials.settled()
    [found] = world.verdicts()
    assert found.verdict == "evaluation_failed"
    assert found.reason == "the evaluator failed: KeyError: 'oh'"


async def test_a_value_that_cannot_be_read_is_reported_and_stops_no_other(world: World) -> None:
    process = await world.process()
    await process.on_candidate(await other_scenario(world))
    key = "reef:{default}:waiting"
    await world.redis.hset(key, "cnd", "{")  # type: ignore[misc]
    await world.redis.sadd("reef:waiting", "default")  # type: ignore[misc]
    with suppress(Unavailable):
        await process.trials.round()
    await process.trials.settled()
    assert [event.scenario for event in world.events.of(CandidateEvaluated)] == ["other"]
    with pytest.raises(Unavailable, match="Invalid JSON"):
        await process.trials.round()
    await process.trials.settled()
