"""Trials in the background: scenarios side by side, and no candidate is forgotten."""

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
import structlog

from reefcommon.errors import Unavailable
from reefcommon.events import CandidateEvaluated, CandidateProposed, Release
from reefkit.redis_heads import RedisReleaseHeads
from reefkit.redis_lease import RedisLease
from services.evaluator.trials import LATER, LOST_AFTER, NEXT, ON_TRIAL, WAIT_S
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


async def test_a_candidate_is_shown_from_its_arrival_to_its_verdict(world: World) -> None:
    """A trial may take minutes beside users; one that waits for it must not look lost."""
    process, hold = await world.process(), asyncio.Event()
    chat = world.nodes[0].chat

    async def slow(*args: Any, **params: Any) -> Any:
        await hold.wait()
        return await chat(*args, **params)

    world.nodes[0].chat = slow  # type: ignore[method-assign]
    first, second = candidate("a"), candidate("b")
    await process.on_candidate(first)
    while [row.reason for row in process.trials.waiting()] != [ON_TRIAL]:
        await asyncio.sleep(0.01)
    await process.on_candidate(second)
    rows = await process.trials.round()
    assert {row.candidate_id: row.reason for row in rows} == {
        first.event_id: ON_TRIAL,
        second.event_id: NEXT,
    }
    assert rows[0].since == first.at
    hold.set()
    await process.trials.settled()
    assert await process.trials.round() == []
    assert len(world.verdicts()) == 2


async def test_the_evaluator_is_ready_again_when_a_trial_begins(world: World) -> None:
    """It said until the trial's end that the engine did not answer, as every candidate did."""
    process, hold = await world.process(), asyncio.Event()
    node, chat = world.nodes[0], world.nodes[0].chat

    async def slow(*args: Any, **params: Any) -> Any:
        await hold.wait()
        return await chat(*args, **params)

    node.down, node.chat = True, slow  # type: ignore[method-assign]
    for seed in "ab":
        await process.on_candidate(candidate(seed))
        await process.trials.settled()
    with pytest.raises(Unavailable, match="http://node-1 does not answer"):
        await process.trials.round()
    await process.trials.settled()
    reasons = [row.reason for row in process.trials.waiting()]
    assert len(reasons) == 2
    assert all(r.startswith(LATER.format("")) and "http://node-1 does not" in r for r in reasons)
    node.down = False
    async with asyncio.timeout(10):
        while not node.adapters:
            with suppress(Unavailable):
                await process.trials.round()
            await asyncio.sleep(0.01)
    rows = await process.trials.round()
    assert sorted(row.reason for row in rows) == [NEXT, ON_TRIAL]
    hold.set()
    await process.trials.settled()
    assert len(world.verdicts()) == 2


async def test_a_long_wait_is_logged_once_and_measured(world: World) -> None:
    process = await world.process()
    old = candidate().model_copy(update={"scenario": "nowhere"})
    old = old.model_copy(update={"at": old.at - timedelta(minutes=5)})
    with structlog.testing.capture_logs() as logged:
        await process.on_candidate(old)
        for _ in range(3):
            await process.trials.settled()
            rows = await process.trials.round()
    assert ["has no head" in row.reason for row in rows] == [True]
    waits = [line for line in logged if line["event"] == "candidate_waits"]
    assert len({line["reason"] for line in waits}) == len(waits)
    assert "has no head" in waits[-1]["reason"]
    assert 300 <= WAIT_S.labels("nowhere")._value.get() < 360


async def test_a_candidate_that_redis_has_lost_is_found_in_the_log(world: World) -> None:
    process = await world.process()
    await process.trials.round()
    lost = candidate("a")
    lost = lost.model_copy(update={"at": lost.at - LOST_AFTER - timedelta(seconds=1)})
    world.log.candidates = [lost, candidate("b")]  # b is too young: it may be on its way
    assert await process.trials.find_lost() == 1
    await process.trials.settled()
    [found] = world.events.of(CandidateEvaluated)
    assert found.candidate.event_id == lost.event_id
    world.log.candidates = []
    assert await process.trials.find_lost() == 0


async def test_a_lost_cancellation_of_the_renewal_stops_no_later_trial(world: World) -> None:
    """It did: the lease was renewed for ever, and no candidate of the scenario was judged again."""
    renewing, lost = asyncio.Event(), []

    class Losing(RedisLease):
        async def verify(self) -> None:
            renewing.set()
            try:
                await asyncio.sleep(0.3)
            except asyncio.CancelledError:
                lost.append(1)
                if len(lost) > 1:
                    raise

    process = await world.process()
    process.trials.lease = lambda name: Losing(world.redis, name, ttl_s=2.0)
    chat = world.nodes[0].chat

    async def until_renewing(*args: Any, **params: Any) -> Any:
        await renewing.wait()
        return await chat(*args, **params)

    world.nodes[0].chat = until_renewing  # type: ignore[method-assign]
    await process.on_candidate(candidate("a"))
    async with asyncio.timeout(60):
        await process.trials.settled()
        await process.on_candidate(candidate("b"))
        await process.trials.settled()
    assert lost
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

    async def broken(*_candidates: CandidateProposed) -> None:
        raise KeyError("oh")

    async def alone(*_candidates: object) -> None: ...

    methods = {"compare": staticmethod(broken), "partner": staticmethod(alone)}
    fake = type("J", (), {**methods, "plans": process.plans})()
    object.__setattr__(process.trials, "comparer", fake)
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
