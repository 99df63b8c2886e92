"""The evaluator verifies a published solution again, from its files alone."""

import asyncio
import json
import random

import pytest

from recipes.ttt_discover.examples.circle_packing.problem import PROBLEM_26
from recipes.ttt_discover.recipe import TTTDiscoverRecipe
from reefcommon.config import parse
from reefcommon.evaluation import choose
from reefcommon.recipe_loading import load_recipe
from tests.recipes.seeking import FakeSeekContext, World

RECIPE = "recipes.ttt_discover.recipe:TTTDiscoverRecipe"
ROWS = "recipes.ttt_discover.examples.row_pattern.problem:PROBLEM"
KNOBS = {"steps": 1, "groups_per_step": 1, "rollouts_per_group": 8, "max_tokens": 18}


def digits(_prompt, seed):
    draw = random.Random(seed)
    return "".join(draw.choice("45") for _ in range(18))


def write(directory, told):
    (directory / "solution.json").write_text(json.dumps(told))
    return directory


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Recipe and directory of a solution that a search has published."""
    recipe = TTTDiscoverRecipe(TTTDiscoverRecipe.knobs_type(problem=ROWS, **KNOBS))
    context, found = FakeSeekContext(World(recipe, digits), None), []

    async def publish(kind, directory, *, metrics, reason):
        told = json.loads((directory / "solution.json").read_text())
        found.append((kind, metrics["value"], write(tmp_path, told)))
        return "cnd"

    monkeypatch.setattr(context, "publish", publish)
    asyncio.run(recipe.seek(context))
    return recipe, *found[-1]


def test_the_figure_gives_the_number_that_the_search_has_found(published):
    recipe, kind, value, directory = published
    assert kind == "solution"
    number, words = recipe.evaluation().judge_files(directory)
    assert number == value > 1.0
    assert words == f"row-pattern-26: {value:.10g}"


def test_a_figure_that_was_tampered_with_is_worthless(published):
    recipe, _, _, directory = published
    told = json.loads((directory / "solution.json").read_text())
    told["figure"]["radii"][0] += 1e-6
    told["value"] = 99.0
    number, words = recipe.evaluation().judge_files(write(directory, told))
    assert number == 0.0 == recipe.evaluation().least
    assert "overlap" in words or "not inside the square" in words


def test_the_figure_of_a_program_is_judged_alike():
    figure = {"centers": [[0.1, 0.1]] * 26, "radii": [0.0] * 26}
    assert PROBLEM_26.check(figure).reward == 0.0
    figure = {"centers": [[0.01 + i / 27, 0.5] for i in range(26)], "radii": [0.01] * 26}
    assert PROBLEM_26.check(figure).reward == pytest.approx(0.26)


def test_every_candidate_of_weights_serves_and_no_report_is_withheld():
    plan = choose(parse(f"reef: {{recipe: '{RECIPE}', problem: '{ROWS}'}}"), "default", RECIPE)
    assert (plan.policy, plan.withholds_samples) == ("always", False)
    assert plan.evaluator.exact


def test_a_guided_search_has_its_solutions_verified_again(published):
    _, _, value, directory = published
    knobs = {"problem": ROWS, "executor": "builtins:str"}
    guided = load_recipe("recipes.guidance.recipe:GuidanceRecipe", knobs)
    assert guided.evaluation().judge_files(directory)[0] == value
