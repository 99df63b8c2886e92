"""Verdicts by held-out samples, without tasks."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from reefcommon.errors import Unavailable
from reefcommon.evaluation import is_held_out
from services.evaluator.handlers import Handlers
from tests.evaluator.conftest import REPLAY, TASKS, World, candidate, scored

pytestmark = pytest.mark.redis


async def test_replay_waits_for_evidence_and_then_judges(world: World) -> None:
    """The smallest serve.yaml: no tasks; what users scored decides."""
    world.text = REPLAY
    process = await world.process()
    event = candidate()
    await world.on_candidate(event, process)
    assert world.verdicts() == []
    (waits,) = await world.look(process)
    assert (waits.scenario, waits.candidate_id) == ("default", event.event_id)
    assert (
        waits.reason == "more reports are needed: 0 of 5 prompts that it "
        "needs have scores that differ from the mean (one report in five is held out to judge "
        "by, 0 so far)"
    )
    liked = {7, 9}

    def logprob(model: str, tokens: list[int]) -> float:
        return -1.0 if ("cand" in model) == (tokens[-1] in liked) else -2.0

    world.nodes[0].logprob = logprob
    for i in range(60):
        await process.on_sample(
            scored(i, 1.0 if i % 2 else 0.0, (1, 100 + i, 3, 7 if i % 2 else 4))
        )
    kept = [i for i in range(60) if is_held_out(f"smp-{i}")]
    assert {sample.sample_id for sample in await process.evidence.samples("default")} == {
        f"smp-{i}" for i in kept
    }
    assert await world.look() == []
    [found] = world.verdicts()
    assert (found.verdict, found.wins, found.losses) == ("select", len(kept), 0)
    assert {task.task for task in found.tasks} == {f"smp-{i}" for i in kept}
    assert await world.look(process) == []
    assert len(world.verdicts()) == 1
    assert not world.nodes[0].adapters


async def test_held_out_reports_are_counted_from_the_first(world: World) -> None:
    """They were only if a candidate waited for them."""
    world.text = REPLAY
    process = await world.process()

    def shown() -> str:
        return process.trials.facts()["held_out"]().get("default", "")

    assert await world.look(process) == []
    assert "0 of 5 prompts" in shown()
    held = [i for i in range(60) if is_held_out(f"smp-{i}")]
    for count, i in enumerate(held[:5]):
        assert f"by, {count} so far" in shown()
        await process.on_sample(scored(i, 1.0 if count % 2 else 0.0, (1, 100 + i, 3, 4)))
    assert shown() == "", "they suffice"


async def test_replay_rejects_what_makes_bad_answers_likelier(world: World) -> None:
    world.text = REPLAY
    process = await world.process()
    world.nodes[0].logprob = lambda model, tokens: (
        -1.0 if ("cand" in model) == (tokens[-1] == 4) else -2.0
    )
    for i in range(60):
        await process.on_sample(
            scored(i, 1.0 if i % 2 else 0.0, (1, 100 + i, 3, 7 if i % 2 else 4))
        )
    found = await world.verdict(candidate())
    assert (found.verdict, found.wins) == ("reject", 0)


async def test_a_prompt_is_one_pair_however_often_it_was_answered(world: World) -> None:
    world.text = REPLAY
    process = await world.process()
    for i in range(60):
        await process.on_sample(scored(i, i % 2, (1, 100 + i % 4, 3, 7 if i % 2 else 4)))
    await world.on_candidate(candidate(), process)
    (waits,) = await world.look(process)
    assert waits.reason.startswith("more reports are needed: 4 of ")


async def test_a_waiting_candidate_whose_head_is_gone(world: World) -> None:
    world.text = REPLAY
    process = await world.process()
    await world.on_candidate(candidate(), process)
    await world.advance("r1-000000")
    assert await world.look(process) == []
    assert "stale_base" in world.verdicts()[0].reason


async def test_a_candidate_waits_until_its_verdict_is_acknowledged(world: World) -> None:
    """The broker refuses the verdict: the next look gives it again."""
    world.text = REPLAY
    process = await world.process()
    await world.on_candidate(candidate(), process)
    await world.advance("r1-000000")
    world.events.down = True
    with pytest.raises(Unavailable):
        await world.look(process)
    world.events.down = False
    assert world.verdicts() == []
    assert await world.look() == []
    assert len(world.verdicts()) == 1
    assert await process.evidence.waiting("default") == []


async def test_held_out_samples_are_bounded(world: World) -> None:
    world.text = REPLAY
    process = await world.process()
    held = [i for i in range(1000) if is_held_out(f"smp-{i}")]
    for i in held:
        await process.on_sample(scored(i, 1.0))
        await process.on_sample(scored(i, 1.0))
    kept = await process.evidence.samples("default")
    assert {sample.sample_id for sample in kept} == {f"smp-{i}" for i in held[-64:]}


def prefers(liked: int) -> Callable[[str, list[int]], float]:
    """A candidate that makes answers likelier which end in `liked`."""
    return lambda model, tokens: -1.0 if ("cand" in model) == (tokens[-1] == liked) else -2.0


async def fill(process: Handlers, count: int) -> None:
    for i in range(count):
        await process.on_sample(
            scored(i, 1.0 if i % 2 else 0.0, (1, 100 + i, 3, 7 if i % 2 else 4))
        )


async def test_a_score_is_computed_once_for_weights_and_sample(world: World) -> None:
    world.text = REPLAY
    process = await world.process()
    await fill(process, 60)
    node = world.nodes[0]
    node.logprob = prefers(4)
    held = len(await process.evidence.samples("default"))
    await world.verdict(candidate("a"))
    assert len(node.scored) == 2 * held
    await world.verdict(candidate("b"))
    assert len(node.scored) == 3 * held, "the head's scores are known"
    winner = candidate("a")
    await world.advance("r1-000000", adapter="default@r1-000000", lora=winner.content_id)
    node.adapters["default@r1-000000"] = "/x"
    await world.verdict(candidate("c", base="r1-000000"))
    assert len(node.scored) == 4 * held, "the new head was scored when it was a candidate"
    assert node.priorities == {10}


async def test_an_interrupted_trial_keeps_the_scores_it_has(world: World) -> None:
    world.text = REPLAY
    process = await world.process()
    await fill(process, 60)
    node = world.nodes[0]
    node.logprob = prefers(7)
    score = node.prompt_logprobs

    async def killed(*args: Any, **params: Any) -> list[float]:
        if len(node.scored) == 7:
            raise asyncio.CancelledError
        return await score(*args, **params)

    node.prompt_logprobs = killed  # type: ignore[method-assign]
    await world.on_candidate(candidate(), process)
    assert world.verdicts() == []
    node.prompt_logprobs = score  # type: ignore[method-assign]
    assert (await world.verdict(candidate())).verdict == "select"
    assert len(node.scored) == 2 * len(await process.evidence.samples("default"))


async def test_twenty_informative_samples_are_needed_by_default(world: World) -> None:
    world.text = REPLAY.replace("evaluation: {min_pairs: 5}\n", "")
    process = await world.process()
    world.nodes[0].logprob = prefers(7)
    await fill(process, 60)
    await world.on_candidate(candidate(), process)
    (waiting,) = await world.look(process)
    assert waiting.reason.startswith("more reports are needed: 12 of 20 ")
    await fill(process, 140)
    assert await world.look(process) == []
    [found] = world.verdicts()
    assert (found.verdict, found.policy, found.strength) == ("select", "no_regression", "strong")
    assert found.pairs >= 20


@pytest.mark.parametrize("score", [1e30, -1e200, 101.0])
async def test_a_score_out_of_range_is_no_evidence(world: World, score: float) -> None:
    world.text = REPLAY
    process = await world.process()
    held = [i for i in range(60) if is_held_out(f"smp-{i}")]
    await process.on_sample(scored(held[0], score))
    await process.on_sample(scored(held[1], 100.0))
    assert [s.sample_id for s in await process.evidence.samples("default")] == [f"smp-{held[1]}"]


@pytest.mark.parametrize("text", [TASKS + "}", REPLAY.replace("min_pairs: 5", "policy: always")])
async def test_no_sample_is_kept_if_none_is_withheld(world: World, text: str) -> None:
    world.text = text
    process = await world.process()
    await fill(process, 60)
    assert await process.evidence.samples("default") == []


async def test_a_harness_release_does_not_age_a_weight_candidate(world: World) -> None:
    world.text = TASKS + "}"
    event = candidate()
    await world.advance("r1-000000", moves="harness")
    found = await world.verdict(event)
    assert (found.verdict, found.head_release_id) == ("select", "r1-000000")


@pytest.mark.parametrize(
    ("on_stale", "moves", "verdict"),
    [
        ("refuse", "harness", "reject"),
        ("merge", "routing", "select"),
        ("merge", "weights", "reject"),
        ("reevaluate", "weights", "select"),
    ],
)
async def test_on_stale_says_when_a_candidate_is_judged_again(
    world: World, on_stale: str, moves: str, verdict: str
) -> None:
    world.text = TASKS.replace("SAORecipe'", f"SAORecipe', on_stale: {on_stale}") + "}"
    await world.advance("r1-000000", moves=moves)
    found = await world.verdict(candidate())
    assert found.verdict == verdict, found.reason
