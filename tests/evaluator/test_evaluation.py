"""Candidates to verdicts, on a real Valkey and a node of the test's own."""

import pytest

from reefcommon.errors import Unavailable
from reefcommon.events import CandidateEvaluated
from tests.evaluator.conftest import TASKS, World, candidate

pytestmark = pytest.mark.redis

ALWAYS = "reef: {recipe: 'recipes.sao.recipe:SAORecipe'}\nevaluation: {policy: always}"


async def test_a_better_candidate_is_selected_with_its_evidence(world: World) -> None:
    event = candidate()
    found = await world.verdict(event)
    assert (found.verdict, found.policy, found.wins, found.losses, found.ties) == (
        "select",
        "paired_confidence",
        5,
        0,
        0,
    )
    assert (found.candidate_score, found.head_score, found.p_value) == (4.0, 1.0, 1 / 32)
    assert (found.pairs, found.test, found.confidence_low, found.strength) == (
        5,
        "paired sign-flip",
        3.0,
        "strong",
    )
    assert [
        (task.task, task.candidate, task.head, task.candidate_answer) for task in found.tasks
    ] == [
        ("0: one", 4.0, 1.0, "good"),
        ("1: two", 4.0, 1.0, "good"),
        ("2: three", 4.0, 1.0, "good"),
        ("3: four", 4.0, 1.0, "good"),
        ("4: five", 4.0, 1.0, "good"),
    ]
    assert found.head_release_id == "r0-000000"
    [sent] = world.events.of(CandidateEvaluated)
    assert sent.candidate == event


async def test_pairs_share_task_and_seed_and_run_interleaved(world: World) -> None:
    await world.verdict(candidate())
    asked = world.nodes[0].asked
    for model, messages, seed in asked:
        assert (
            sum(1 for other, m, s in asked if other != model and m == messages and s == seed) == 1
        )
    models = [model for model, _, _ in asked]
    assert models[:2] != [models[0]] * 2, "candidate and head take turns"
    assert world.nodes[0].priorities == {10}, "users are served first"


async def test_two_candidates_are_measured_with_unrelated_seeds(world: World) -> None:
    await world.verdict(candidate("a"))
    first = {seed for _, _, seed in world.nodes[0].asked}
    world.nodes[0].asked.clear()
    await world.verdict(candidate("b"))
    second = {seed for _, _, seed in world.nodes[0].asked}
    assert min(abs(a - b) for a in first for b in second) > 256
    assert len(first) == len(second) == 5


async def test_too_few_tasks_leave_a_candidate_waiting(world: World) -> None:
    world.text = TASKS.replace("three, four, five", "three") + "}"
    process = await world.process()
    await world.on_candidate(candidate(), process)
    (waiting,) = await world.look(process)
    assert waiting.reason.startswith("3 held-out tasks, 5 are needed")
    assert not world.nodes[0].asked
    world.text = TASKS + "}"
    assert await world.look() == []
    assert [found.verdict for found in world.verdicts()] == ["select"]


async def test_an_equal_candidate_is_rejected(world: World) -> None:
    world.nodes[0].answer = lambda *_: "same"
    found = await world.verdict(candidate())
    assert (found.verdict, found.ties, found.strength) == ("reject", 5, "none")


async def test_samples_of_a_task_are_averaged(world: World) -> None:
    world.nodes[0].answer = lambda model, _messages, _seed, i: "x" * (i if "cand" in model else 1)
    found = await world.verdict(candidate())
    assert (found.candidate_score, found.head_score) == (1.5, 1.0)


async def test_a_candidate_of_an_old_head(world: World) -> None:
    await world.advance("r1-000000")
    found = await world.verdict(candidate())
    assert found.verdict == "reject"
    assert found.reason == "stale_base: made from r0-000000, but r1-000000 is the head"
    assert not world.nodes[0].asked


async def test_a_head_that_moves_during_the_trial(world: World) -> None:
    process = await world.process()
    original = world.nodes[0].chat

    async def chat(model: str, *args: object, **params: object) -> object:
        if params["max_tokens"] == 1:
            return await original(model, *args, **params)  # type: ignore[arg-type]
        if world.head is not None and world.head.sequence == 0:
            await world.advance("r1-000000")
        raise Unavailable("the old head was unloaded")

    world.nodes[0].chat = chat  # type: ignore[method-assign,assignment]
    await world.on_candidate(candidate(), process)
    assert [(found.verdict, found.reason) for found in world.verdicts()] == [
        ("reject", "stale_base: made from r0-000000, but r1-000000 is the head")
    ]


async def test_a_scenario_without_a_head(world: World) -> None:
    process = await world.process()
    await world.on_candidate(candidate().model_copy(update={"scenario": "nowhere"}), process)
    (waiting,) = await world.look(process)
    assert "has no head" in waiting.reason


async def test_always_must_be_asked_for_and_still_loads(world: World) -> None:
    world.text = ALWAYS
    found = await world.verdict(candidate())
    assert (found.verdict, found.policy) == ("select", "always")
    assert "asked for by name" in found.reason
    assert world.nodes[0].seen_names, "it was loaded"
    world.nodes[0].full = True
    assert (await world.verdict(candidate("b"))).verdict == "evaluation_failed"


async def test_policy_always_still_compares_if_there_are_tasks(world: World) -> None:
    world.text = f"{TASKS}, policy: always}}"
    world.nodes[0].answer = lambda model, *_: "x" if "cand" in model else "good"
    found = await world.verdict(candidate())
    assert (found.verdict, found.candidate_score, found.head_score, found.losses) == (
        "select",
        1.0,
        4.0,
        5,
    )
    assert found.reason.startswith("0 wins, 5 losses, 0 ties; mean difference -3; always: asked")
    assert found.strength == "none"


async def test_a_repeat_gives_the_same_verdict_under_the_same_id(world: World) -> None:
    for _ in range(2):
        await world.verdict(candidate())
    first, second = world.events.of(CandidateEvaluated)
    assert first.event_id == second.event_id
    assert first.evaluation.tasks == second.evaluation.tasks


async def test_a_repeat_that_finds_another_head_is_another_verdict(world: World) -> None:
    """One id has one content: whoever keeps the first would not hear of the second."""
    await world.verdict(candidate())
    await world.advance("r1-000000")
    await world.verdict(candidate())
    first, second = world.events.of(CandidateEvaluated)
    assert (first.evaluation.verdict, second.evaluation.verdict) == ("select", "reject")
    assert first.event_id != second.event_id
