"""`requires_harness`: samples that were made under an older harness are refused, with the reason."""

import pytest

from reefcommon.config import parse
from reefcommon.errors import BadConfig
from reefcommon.recipe import Knobs
from reefkit.jobs.usable import unusable
from reefkit.recipe_binding import Binding
from services.experience.domain.samples import _with_oldest_harness
from tests.jobs.words import WordsRecipe
from tests.recipes.samples import sample
from tests.trainer.rig import release

HEAD = release(7).model_copy(update={"loads": {"weights": "run:5", "harness": "run:3"}})


@pytest.mark.parametrize(
    ("wanted", "made", "reason"),
    [
        (None, "run:0", None),
        ("head", "run:3", None),
        ("head", "run:2", "old_harness: 2, required 3"),
        (2, "run:2", None),
        (2, "run:1", "old_harness: 1, required 2"),
        ("head", "other:9", "old_harness: 9, required 3"),
        (1, "", "old_harness: unknown"),
    ],
)
def test_a_sample_is_refused_by_the_load_of_its_harness(wanted, made, reason):
    binding = Binding("default", "w:W", WordsRecipe(Knobs()), requires_harness=wanted)
    unit = sample(loads={"weights": "run:5", "harness": made} if made else {})
    assert unusable(binding, unit, HEAD) == reason


def test_the_oldest_harness_of_several_turns_counts():
    class Turn:
        def __init__(self, load):
            self.loads = {"weights": "run:5", "harness": load}

    turns = [Turn("run:3"), Turn("run:2"), Turn("run:10")]
    assert _with_oldest_harness(turns[0].loads, turns) == {"weights": "run:5", "harness": "run:2"}
    assert _with_oldest_harness({}, turns) == {}


def test_it_is_a_setting_of_the_binding_and_no_knob():
    given = "reef: {recipe: 'recipes.sao.recipe:SAORecipe', requires_harness: %s}"
    assert parse(given % "head").reef[0].requires_harness == "head"
    assert parse(given % "3").reef[0].knobs == {}
    for wrong in ("0", "newest", "1.5"):
        with pytest.raises(BadConfig, match="requires_harness"):
            parse(given % wrong)
