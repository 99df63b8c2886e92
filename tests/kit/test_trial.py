"""`ctx.trial`: trees side by side on a minibatch, with equal seeds, within the budget."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from reefcommon.config import parse
from reefcommon.errors import Poison
from reefcommon.harness.tree import Entry, Inadmissible, Tree
from reefcommon.recipe_context import BudgetSpent, Limits, Messages, ModelFailed, Outcome, Reply
from reefcommon.recipe_loading import load_recipe
from reefkit.recipes.trial import Minibatches
from reefkit.verifier import VerifierFailed

RECIPE = "tests.evaluator.recipes:LengthsRecipe"
PARENT: Tree = (Entry("brief", "rules", {"text": "Be brief."}),)
CHILD: Tree = (Entry("brief", "rules", {"text": "Be very brief."}),)


@dataclass
class Served:
    """A model that answers with as many letters as its rules have words, and a budget."""

    calls_left: int = 1000
    short_of: int = 0
    asked: list[tuple[str, int, str, dict[str, Any]]] = field(default_factory=list)
    most: int = 0
    running: int = 0

    async def chat(
        self, messages: Messages, *, purpose: str, n: int = 1, **params: Any
    ) -> list[Reply]:
        if self.calls_left <= 0:
            raise BudgetSpent("served: the calls are used up")
        self.calls_left -= 1
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(0.001)
        self.running -= 1
        self.asked.append((str(messages[-1]["content"]), params.pop("seed"), purpose, params))
        rules = messages[0]["content"] if messages[0]["role"] == "system" else ""
        return [Reply("x" * (len(rules.split()) + i)) for i in range(n - self.short_of)]

    async def score(self, tokens: Sequence[int], *, purpose: str) -> list[float]:
        raise AssertionError("a trial scores no tokens")


def minibatches(recipe: str = RECIPE, **evaluation: Any) -> Minibatches:
    section = parse(f"reef: {{recipe: '{recipe}'}}\nevaluation: {evaluation}").evaluation
    return Minibatches("default", load_recipe(recipe, {}), section)


TASKS = [{"id": "a", "prompt": "one"}, {"id": "b", "prompt": "two"}]


async def test_each_tree_gets_its_numbers_and_words_by_task() -> None:
    served = Served()
    found = await minibatches(max_tokens=9).trial(served, [PARENT, CHILD, ()], TASKS)
    # "## Rules", "- Be brief.": five words; the child has one more; no tree, no rules.
    assert [result.scores for result in found] == [(5.0, 5.0), (6.0, 6.0), (0.0, 0.0)]
    assert found[1].words == ("a: 6 characters", "b: 6 characters")
    assert found[1].answers == ("xxxxxx", "xxxxxx")
    assert {purpose for _, _, purpose, _ in served.asked} == {"trial"}
    assert all(params == {"max_tokens": 9, "temperature": 1.0} for *_, params in served.asked)


async def test_a_task_has_one_seed_for_all_trees_and_minibatches() -> None:
    served, trials = Served(), minibatches()
    await trials.trial(served, [PARENT, CHILD], TASKS)
    await trials.trial(served, [PARENT], [*reversed(TASKS)])
    seeds: dict[str, set[int]] = {}
    for prompt, seed, _, _ in served.asked:
        seeds.setdefault(prompt, set()).add(seed)
    assert {prompt: len(found) for prompt, found in seeds.items()} == {"one": 1, "two": 1}
    assert seeds["one"] != seeds["two"]
    served.asked.clear()
    await trials.trial(served, [PARENT], TASKS, seed=1)
    assert not {seed for _, seed, _, _ in served.asked} & seeds["one"], "a seed of its own"


async def test_several_answers_are_averaged_and_settings_may_be_changed() -> None:
    served = Served()
    (found,) = await minibatches().trial(
        served, [PARENT], TASKS, samples=3, temperature=0.0, top_p=0.5
    )
    assert found.scores == (6.0, 6.0), "the mean of 5, 6 and 7"
    assert found.words == ("a: 5 characters", "b: 5 characters"), "those of the first answer"
    assert len(served.asked) == 2
    assert all((p["temperature"], p["top_p"]) == (0.0, 0.5) for *_, p in served.asked)


async def test_a_score_of_the_callers_own_and_that_of_serve_yaml() -> None:
    def letters(_task: Any, outcome: str) -> tuple[float, str]:
        return -float(len(outcome)), "letters"

    (found,) = await minibatches().trial(Served(), [PARENT], ["one"], score=letters)
    assert (found.scores, found.words) == ((-5.0,), ("letters",))
    named = minibatches("recipes.sao.recipe:SAORecipe", score="tests.evaluator.verifiers:shortness")
    (found,) = await named.trial(Served(), [PARENT], ["one"])
    assert (found.scores, found.words) == ((-5.0,), ("short",))


async def test_a_program_is_run_and_its_end_is_scored() -> None:
    async def run(program: str, *, limits: Limits | None = None) -> Outcome:
        return Outcome("ok", 0, str(len(program)))

    recipe = "tests.evaluator.recipes:ProgramsRecipe"
    trials = replace(minibatches(recipe), run=run)
    (found,) = await trials.trial(Served(), [PARENT], ["one"])
    assert (found.scores, found.words) == ((5.0,), ("ok",))
    with pytest.raises(VerifierFailed, match="needs a sandbox"):
        await minibatches(recipe).trial(Served(), [PARENT], ["one"])


async def test_calls_are_bounded_and_a_spent_budget_ends_the_trial() -> None:
    served = Served()
    await minibatches().trial(
        served, [PARENT] * 5, [{"id": str(i), "prompt": "x"} for i in range(10)]
    )
    assert served.most == 16
    with pytest.raises(BudgetSpent):
        await minibatches().trial(Served(calls_left=3), [PARENT, CHILD], TASKS)
    with pytest.raises(ModelFailed, match="1 answers instead of 2"):
        await minibatches().trial(Served(short_of=1), [PARENT], TASKS, samples=2)


async def test_mistakes_of_a_recipe_are_its_own() -> None:
    trials = minibatches()
    with pytest.raises(Poison, match=r"ctx\.trial: task 1 must be a prompt"):
        await trials.trial(Served(), [PARENT], ["a", 3])
    with pytest.raises(Poison, match="two tasks are called 'x'"):
        await trials.trial(Served(), [PARENT], [{"id": "x", "prompt": p} for p in "ab"])
    with pytest.raises(Inadmissible):
        await trials.trial(Served(), [(Entry("r", "rules", {}),)], ["a"])
    with pytest.raises(VerifierFailed, match=r"ZeroDivisionError: division by zero \(test_trial"):
        await trials.trial(Served(), [PARENT], ["a"], score=lambda *_: 1 / 0)
    with pytest.raises(VerifierFailed, match="no function scores"):
        await minibatches("recipes.sao.recipe:SAORecipe").trial(Served(), [PARENT], ["a"])
    assert await trials.trial(Served(), [], ["a"]) == []
    (empty,) = await trials.trial(Served(), [PARENT], [])
    assert empty.scores == ()


async def test_a_trial_works_in_the_next_loop_of_the_recipes_thread() -> None:
    trials = minibatches()

    def slow(_task: Any, outcome: str) -> float:
        return float(len(outcome))

    for _ in range(2):
        found = await asyncio.to_thread(
            asyncio.run, trials.trial(Served(), [PARENT] * 4, TASKS, score=slow)
        )
        assert [result.scores for result in found] == [(5.0, 5.0)] * 4
