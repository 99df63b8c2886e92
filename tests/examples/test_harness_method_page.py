"""docs/write-a-harness-method.md, followed to the letter: its method is saved, listed, loaded, and learns."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.reflection.examples import house
from recipes.reflection.examples.models import complaints
from reefcommon import config, evaluation, recipe_loading
from tests.recipes.harness_world import HarnessWorld

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "write-a-harness-method.md").read_text()


def block(language: str) -> str:
    return re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[1]


@pytest.fixture
def written(tmp_path, monkeypatch):
    (tmp_path / "one_rule.py").write_text(block("python"))
    (tmp_path / "serve.yaml").write_text(block("yaml"))
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("one_rule", None)


def test_the_method_is_thirty_lines():
    # without the imports and its title
    written = [line for line in block("python").splitlines() if line.strip()]
    own = [line for line in written if not line.startswith(("from ", '"""'))]
    assert len(own) <= 30


def test_its_file_loads_and_its_candidates_are_judged_by_tasks(written):
    served = config.load(written / "serve.yaml")
    (bound,) = served.reef
    assert recipe_loading.load_recipe(bound.recipe, bound.knobs).name == "one_rule"
    plan = evaluation.choose(served, "default", "one_rule")
    assert (plan.method, plan.policy) == ("tasks", "paired_confidence")


def test_reef_recipes_lists_it_as_printed(written):
    (command,) = [line for line in block("bash").splitlines() if "reef recipes" in line]
    told, *arguments = shlex.split(command)
    assert (told, arguments[0]) == ("PYTHONPATH=.", ".venv/bin/reef")
    env = {**os.environ, "PYTHONPATH": "."}
    program = [sys.executable, "-m", "reefcli", *arguments[1:]]
    paths = os.pathsep.join((".", str(ROOT / "libs"), str(ROOT)))
    done = subprocess.run(
        program,
        capture_output=True,
        text=True,
        check=True,
        cwd=written,
        env={**env, "PYTHONPATH": paths},
    )
    assert "a model turns each bad report into a rule" in done.stdout


def writer(messages, _seed):
    """Makes a rule of the complaint; without one it talks."""
    said = complaints(messages[-1]["content"])
    return json.dumps({"rule": said[0]}) if said else "I see no complaint."


async def test_it_learns_from_bad_reports_and_refuses_good_ones(written):
    recipe = recipe_loading.load_recipe("one_rule:OneRuleRecipe", {})
    world = HarnessWorld(written / "host", recipe, writer, policy="paired_confidence")
    for task in house.TRAIN[:3]:
        world.report(task)
        await world.run()
    assert world.mean() == 1.0
    assert world.outcomes == ["ReleasePublished"] * 3
    world.report(house.TRAIN[3])
    world.report(house.TRAIN[4], score=0.0, feedback="no idea")
    await world.run()
    assert world.store.refusals(world.loop.binding.key) == {"no_failure": 1}
    assert len(world.verdicts) == 3
    world.close()


def test_the_page_names_what_exists():
    for path in set(re.findall(r"`((?:libs|tests|docs)/[\w/.-]+)`", PAGE)):
        assert (ROOT / path).exists(), path
    for name in re.findall(r"`(feedback_rules|ace|harness_evolve|skill_evolution|gepa)`", PAGE):
        assert (ROOT / "recipes" / name / "recipe.py").exists()
