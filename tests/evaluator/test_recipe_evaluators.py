"""A recipe's own evaluator: tasks by scenario, a verifier with words, programs."""

import asyncio
import json
import threading
import time
from typing import Any

import pytest

from reefcommon.config import parse
from reefcommon.errors import BadConfig
from reefcommon.evaluation import choose
from reefcommon.evaluator import MAX_WORDS
from reefcommon.events import CandidateEvaluated, CandidateProposed
from reefcommon.recipe import WeightRecipe
from reefcommon.recipe_context import Limits, Outcome
from reefkit.recipe_binding import bindings
from reefkit.recipes.sandbox import Sandbox
from services.evaluator.plans import Plans
from tests.evaluator import verifiers
from tests.evaluator.conftest import World, candidate
from tests.evaluator.test_trials import other_scenario

pytestmark = pytest.mark.redis

HERE = "tests.evaluator.recipes"


def text(recipe: str, **evaluation: Any) -> str:
    section = f"\nevaluation: {json.dumps(evaluation)}" if evaluation else ""
    return f"reef: {{recipe: '{HERE}:{recipe}'}}{section}"


def ours(recipe: str, seed: str = "a") -> CandidateProposed:
    return candidate(seed, recipe=f"{HERE}:{recipe}")


async def test_the_recipes_tasks_and_words_judge_its_candidates(world: World) -> None:
    world.text = text("LengthsRecipe")
    found = await world.verdict(ours("LengthsRecipe"))
    assert (found.verdict, found.policy, found.wins) == ("select", "paired_confidence", 5)
    assert [
        (task.task, task.candidate, task.candidate_words, task.head_words) for task in found.tasks
    ] == [
        (f"default-{i}", 4.0, f"default-{i}: 4 characters", f"default-{i}: 1 characters")
        for i in range(5)
    ]


async def test_another_producers_candidate_is_not_judged_by_it(world: World) -> None:
    world.text = text("LengthsRecipe")
    process = await world.process()
    await world.on_candidate(candidate(recipe="somebody's"), process)
    (waiting,) = await world.look(process)
    assert "held out to judge by" in waiting.reason


async def test_serve_yaml_wins_for_tasks_and_for_the_score(world: World) -> None:
    world.text = text("LengthsRecipe", tasks=[{"id": f"t{i}", "prompt": "x"} for i in range(6)])
    found = await world.verdict(ours("LengthsRecipe"))
    assert [task.task for task in found.tasks] == [f"t{i}" for i in range(6)]
    assert found.tasks[0].candidate_words == "t0: 4 characters"
    world.text = text("LengthsRecipe", score="tests.evaluator.verifiers:shortness")
    found = await world.verdict(ours("LengthsRecipe", "b"))
    assert (found.verdict, found.losses, found.tasks[0].task) == ("reject", 5, "default-0")
    assert found.tasks[0].head_words == "short"


async def test_tasks_and_score_may_be_given_by_scenario(world: World) -> None:
    theirs = await other_scenario(world)
    both = "tests.evaluator.verifiers:"
    world.text = "scenarios: [other]\n" + text(
        "LengthsRecipe",
        tasks={"other": [f"q{i}" for i in range(5)]},
        score={"oth*": both + "shortness", "other": both + "length"},
    )
    process = await world.process()
    await world.on_candidate(theirs, process)
    await world.on_candidate(ours("LengthsRecipe"), process)
    names = {
        event.scenario: [task.task for task in event.evaluation.tasks]
        for event in world.events.of(CandidateEvaluated)
    }
    assert names == {
        "other": [f"{i}: q{i}" for i in range(5)],
        "default": [f"default-{i}" for i in range(5)],
    }
    first = world.events.of(CandidateEvaluated)[0].evaluation
    assert (first.verdict, first.candidate_score) == ("select", 4.0), "its own key wins"


async def test_words_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifiers, "WORDS", "y" * 10_000)
    world.text = text("LengthsRecipe", score="tests.evaluator.verifiers:shortness")
    found = await world.verdict(ours("LengthsRecipe"))
    assert {len(task.candidate_words) for task in found.tasks} == {MAX_WORDS}


async def run(program: str, *, limits: Limits | None = None) -> Outcome:
    assert limits is not None
    return Outcome("ok", 0, program.removeprefix("print ")) if program else Outcome("failed", 1)


async def test_a_program_of_the_answer_is_run_and_its_end_is_scored(world: World) -> None:
    world.text = text("ProgramsRecipe")
    world.nodes[0].answer = lambda model, *_: (
        "Look:\n```python\nprint 7\n```\nDone." if "cand" in model else "print 2"
    )
    process = await world.process()
    plans = Plans.load(parse(world.text), run=run)
    object.__setattr__(process.trials.comparer, "plans", plans)
    await world.on_candidate(ours("ProgramsRecipe"), process)
    [found] = world.verdicts()
    assert (found.verdict, found.candidate_score, found.head_score) == ("select", 7.0, 2.0)
    assert found.tasks[0].candidate_words == "ok"
    assert found.tasks[0].candidate_answer.startswith("Look:")


async def test_programs_run_in_the_real_sandbox(world: World) -> None:
    world.text = text("ProgramsRecipe")
    world.nodes[0].answer = lambda model, *_: (
        "```python\nprint(3 + 4)\n```" if "cand" in model else "raise SystemExit(1)"
    )
    process = await world.process()
    plans = Plans.load(parse(world.text), run=Sandbox().run)
    object.__setattr__(process.trials.comparer, "plans", plans)
    await world.on_candidate(ours("ProgramsRecipe"), process)
    [found] = world.verdicts()
    assert (found.verdict, found.candidate_score, found.head_score) == ("select", 7.0, 0.0)
    assert (found.tasks[0].candidate_words, found.tasks[0].head_words) == ("ok", "failed")


async def test_a_slow_verifier_is_ended_and_holds_up_no_other_scenario(world: World) -> None:
    """Its threads stand still for longer than the other trial takes, then it fails."""
    theirs = await other_scenario(world)
    hold, release = threading.Event(), time.monotonic() + 30

    def slow(task: Any, answer: str) -> float:
        hold.wait(release - time.monotonic())
        return 1.0

    verifiers.SLOW = slow
    score = {name: f"tests.evaluator.verifiers:{name}" for name in ("slow", "length")}
    section = text(
        "LengthsRecipe",
        score={"default": score["slow"], "other": score["length"]},
        tasks={"other": [f"q{i}" for i in range(5)]},
    )
    config = parse("scenarios: [other]\n" + section)
    process = await world.process()
    object.__setattr__(process.trials.comparer, "plans", Plans.load(config, limit_s=1.0))
    try:
        await process.on_candidate(ours("LengthsRecipe"))
        await asyncio.sleep(0.1)
        await process.on_candidate(theirs)
        async with asyncio.timeout(20):
            await process.trials.settled()
    finally:
        hold.set()
    first, second = world.events.of(CandidateEvaluated)
    assert (first.scenario, first.evaluation.verdict) == ("other", "select")
    assert (second.scenario, second.evaluation.verdict) == ("default", "evaluation_failed")
    assert "takes longer than 1 s" in second.evaluation.reason


@pytest.mark.parametrize(
    ("recipe", "evaluation", "words"),
    [
        ("UnscoredRecipe", {}, "evaluation.score: missing for .*UnscoredRecipe in scenario"),
        ("FailingRecipe", {}, r"evaluation\(\) failed: KeyError: 'tasks.json'"),
        (
            "NoPlanRecipe",
            {},
            r"evaluation\(\) must return an EvaluationPlan or an Evaluator, not 'a",
        ),
        ("BrokenRecipe", {}, r"tasks\('default'\) failed: FileNotFoundError: no tasks of default"),
        (
            "LengthsRecipe",
            {"tasks": {"defalt": ["a"]}},
            "evaluation.tasks.defalt: no such scenario",
        ),
        ("LengthsRecipe", {"tasks": {"default": 3}}, "scenario default: must be a list of tasks"),
        ("LengthsRecipe", {"score": {"default": 3}}, "scenario default: must be package.module"),
        ("LengthsRecipe", {"tasks": 3}, "must be a list of tasks, or package.module:NAME"),
        ("LengthsRecipe", {"score": {"default": "math:pi"}}, "not a function"),
    ],
)
def test_mistakes_of_an_evaluation_teach(recipe: str, evaluation: Any, words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        Plans.load(parse(text(recipe, **evaluation)))


@pytest.mark.parametrize(
    ("recipe", "method", "policy", "withholds"),
    [
        ("LengthsRecipe", "tasks", "paired_confidence", False),
        ("PackingRecipe", "replay", "always", False),
        ("UnscoredRecipe", "tasks", "paired_confidence", False),
    ],
)
def test_the_plan_of_an_evaluator_withholds_samples_only_for_replay(
    recipe: str, method: str, policy: str, *, withholds: bool
) -> None:
    config = parse(text(recipe))
    plan = choose(config, "default", f"{HERE}:{recipe}")
    (binding,) = bindings(config, WeightRecipe)
    assert binding.holds_out is withholds
    assert (plan.method, plan.policy, plan.withholds_samples) == (method, policy, withholds)
    weighed = choose(parse(text(recipe, policy="no_regression")), "default", f"{HERE}:{recipe}")
    assert weighed.withholds_samples is (method == "replay")
