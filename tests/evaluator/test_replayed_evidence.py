"""Verdicts from what users scored, where nobody gave tasks."""

import pytest

from reefcommon.errors import Unavailable
from reefcommon.evaluation import is_held_out
from tests.evaluator.conftest import REPLAY, World, candidate, scored

pytestmark = pytest.mark.redis


async def test_replay_waits_for_evidence_and_then_judges(world: World) -> None:
    """The smallest serve.yaml: no tasks; what users scored decides."""
    world.text = REPLAY
    process = await world.process()
    event = candidate()
    await process.on_candidate(event)
    assert world.verdicts() == []
    (waits,) = await process.look_again()
    assert (waits.scenario, waits.candidate_id) == ("default", event.event_id)
    assert (
        waits.reason
        == "insufficient_evidence: 0 held-out samples differ from the mean score, 5 are needed (0 are there)"
    )
    liked = {7, 9}

    def logprob(model: str, tokens: list[int]) -> float:
        return -1.0 if ("cand" in model) == (tokens[-1] in liked) else -2.0

    world.nodes[0].logprob = logprob
    for i in range(60):
        await process.on_sample(scored(i, 1.0 if i % 2 else 0.0, (1, 2, 3, 7 if i % 2 else 4)))
    kept = [i for i in range(60) if is_held_out(f"smp-{i}")]
    assert {sample.sample_id for sample in await process.evidence.samples("default")} == {
        f"smp-{i}" for i in kept
    }
    assert await (await world.process()).look_again() == []
    [found] = world.verdicts()
    assert (found.verdict, found.wins, found.losses) == ("select", len(kept), 0)
    assert {task.task for task in found.tasks} == {f"smp-{i}" for i in kept}
    assert await process.look_again() == []
    assert len(world.verdicts()) == 1
    assert not world.nodes[0].adapters


async def test_replay_rejects_what_makes_bad_answers_likelier(world: World) -> None:
    world.text = REPLAY
    process = await world.process()
    world.nodes[0].logprob = lambda model, tokens: (
        -1.0 if ("cand" in model) == (tokens[-1] == 4) else -2.0
    )
    for i in range(60):
        await process.on_sample(scored(i, 1.0 if i % 2 else 0.0, (1, 2, 3, 7 if i % 2 else 4)))
    found = await world.verdict(candidate())
    assert (found.verdict, found.wins) == ("reject", 0)


async def test_a_waiting_candidate_whose_head_is_gone(world: World) -> None:
    world.text = REPLAY
    process = await world.process()
    await process.on_candidate(candidate())
    await world.advance("r1-000000")
    assert await process.look_again() == []
    assert "stale_base" in world.verdicts()[0].reason


async def test_a_candidate_waits_until_its_verdict_is_acknowledged(world: World) -> None:
    """The broker refuses the verdict: the next look gives it again."""
    world.text = REPLAY
    process = await world.process()
    await process.on_candidate(candidate())
    await world.advance("r1-000000")
    world.events.down = True
    with pytest.raises(Unavailable):
        await process.look_again()
    world.events.down = False
    assert world.verdicts() == []
    assert await (await world.process()).look_again() == []
    assert len(world.verdicts()) == 1
    assert await process.evidence.waiting() == []


async def test_held_out_samples_are_bounded(world: World) -> None:
    process = await world.process()
    held = [i for i in range(1000) if is_held_out(f"smp-{i}")]
    for i in held:
        await process.on_sample(scored(i, 1.0))
        await process.on_sample(scored(i, 1.0))
    kept = await process.evidence.samples("default")
    assert {sample.sample_id for sample in kept} == {f"smp-{i}" for i in held[-64:]}
