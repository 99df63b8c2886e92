"""The examples: files that load, tasks that are held out, scores that mean what they say."""

from pathlib import Path

import pytest
import yaml

from reefcommon.config import load
from reefcommon.recipe_loading import load_recipe, resolve

EXAMPLES = Path("recipes/sao/examples")


@pytest.mark.parametrize("name", ["sao", "dictionary", "tiny"])
def test_an_example_loads(name):
    config = load(EXAMPLES / name / "serve.yaml")
    (binding,) = config.reef
    assert load_recipe(binding.recipe, binding.knobs).name == "sao"


def test_the_smallest_file_says_what_it_always_said():
    text = (EXAMPLES / "sao" / "serve.yaml").read_text()
    assert yaml.safe_load(text) == {
        "reef": {"recipe": "recipes.sao.recipe:SAORecipe", "batch_size": 1, "max_staleness": 18}
    }


@pytest.mark.parametrize("name", ["dictionary", "tiny"])
def test_evaluation_tasks_are_held_out(name):
    evaluation = load(EXAMPLES / name / "serve.yaml").evaluation
    assert isinstance(evaluation.tasks, str)
    heldout = resolve(evaluation.tasks)
    train, test = (
        resolve(f"recipes.sao.examples.{name}.tasks:{part}") for part in ("TRAIN", "TEST")
    )
    assert (len(heldout), len(test)) == (12, 24)
    assert len({*train, *heldout, *test}) == len(train) + len(heldout) + len(test)
    assert callable(resolve(evaluation.score))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("A drum is", 1.0),
        (" An oar", 1.0),
        ("a drum", 0.0),
        ("The drum", 0.0),
        ("Aha, so", 0.0),
        ("", 0.0),
    ],
)
def test_dictionary_score(answer, expected):
    assert resolve("recipes.sao.examples.dictionary.tasks:score")("any", answer) == expected


@pytest.mark.parametrize(
    ("answer", "expected"), [("abcd", 1.0), ("aB1 ", 0.25), ("\u00e9", 0.0), ("", 0.0)]
)
def test_tiny_score(answer, expected):
    assert resolve("recipes.sao.examples.tiny.tasks:score")("any", answer) == expected
