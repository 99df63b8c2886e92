"""The kinds of units that the recipes of a `serve.yaml` want."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest

from reefcommon.errors import BadConfig
from reefcommon.events import Unit, UnitKind
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Dimensions, Learner, WeightRecipe
from services.experience.wants import Wants


class Turns(WeightRecipe):
    name: ClassVar[str] = "turns"
    summary: ClassVar[str] = "for this test"
    dimensions: ClassVar[Dimensions] = Dimensions("next state", "reactive", ("lora",))
    consumes: ClassVar[tuple[UnitKind, ...]] = ("turn",)

    def decide(self, waiting: Sequence[Unit], serving: LoadId) -> Decision:
        return Decision()

    def learner(self, model_path: Path) -> Learner:
        raise NotImplementedError


class Sessions(Turns):
    consumes: ClassVar[tuple[UnitKind, ...]] = ("report", "session")


def written(folder: Path, text: str) -> Path:
    path = folder / "serve.yaml"
    path.write_text(text)
    return path


def test_the_kinds_of_all_recipes_of_a_scenario_are_wanted(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        f"""reef:
- {{recipe: "{__name__}:Turns", scenario: a}}
- {{recipe: "{__name__}:Sessions", scenario: a}}
- {{recipe: "{__name__}:Turns", scenario: b}}
- {{recipe: "recipes.sao.recipe:SAORecipe", scenario: c}}
""",
    )
    wants = Wants.read(path)
    assert (wants.of("a"), wants.of("b")) == ({"turn", "session"}, {"turn"})
    assert (wants.of("c"), wants.of("default")) == (frozenset(), frozenset())
    assert wants


def test_with_reports_alone_or_without_a_file_nothing_else_is_wanted(tmp_path: Path) -> None:
    assert not Wants.read(None)
    assert not Wants.read(written(tmp_path, "reef: {recipe: 'recipes.sao.recipe:SAORecipe'}"))


def test_a_recipe_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="no module 'nowhere'"):
        Wants.read(written(tmp_path, "reef: {recipe: 'nowhere:Recipe'}"))
