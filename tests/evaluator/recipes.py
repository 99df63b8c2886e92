"""Recipes with an evaluator of their own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from recipes.sao.knobs import Knobs
from recipes.sao.recipe import SAORecipe
from reefcommon.evaluator import Evaluator, Score
from reefcommon.recipe_context import Outcome


class Lengths(Evaluator):
    """Five tasks for each scenario; longer answers are better."""

    def tasks(self, scenario: str) -> Sequence[Any]:
        return [{"id": f"{scenario}-{i}", "prompt": f"task {i}"} for i in range(5)]

    def score(self, task: Any, outcome: Any) -> Score:
        return float(len(outcome)), f"{task['id']}: {len(outcome)} characters"


class LengthsRecipe(SAORecipe):
    name = "lengths"

    def evaluation(self) -> Evaluator:
        return Lengths()


class Programs(Lengths):
    """The answers are programs, and their output is scored."""

    runner = "program"

    def score(self, task: Any, outcome: Outcome) -> Score:
        return (float(outcome.stdout) if outcome.status == "ok" else 0.0), outcome.status


class ProgramsRecipe(SAORecipe):
    name = "programs"

    def evaluation(self) -> Evaluator:
        return Programs()


class Unscored(Evaluator):
    def tasks(self, scenario: str) -> Sequence[Any]:
        return ["a", "b", "c", "d", "e"]


class UnscoredRecipe(SAORecipe):
    name = "unscored"

    def evaluation(self) -> Evaluator:
        return Unscored()


class Broken(Lengths):
    def tasks(self, scenario: str) -> Sequence[Any]:
        raise FileNotFoundError(f"no tasks of {scenario}")


class BrokenRecipe(SAORecipe):
    name = "broken"

    def evaluation(self) -> Evaluator:
        return Broken()


class FailingRecipe(SAORecipe):
    name = "failing"

    def evaluation(self) -> Evaluator:
        raise KeyError("tasks.json")


class NoPlanRecipe(SAORecipe):
    name = "no_plan"

    def evaluation(self) -> Evaluator:
        return "always"  # type: ignore[return-value]


class PackingKnobs(Knobs):
    exact: bool = Field(True, description="says that its numbers are exact")
    least: float = Field(0.0, description="the number that every solution must beat")


class Packing(Evaluator):
    """The number in the file `file` is its worth. `noise` is added at each call."""

    policy = "always"
    noise = 0.0

    def __init__(self, knobs: PackingKnobs) -> None:
        self.exact, self.least = knobs.exact, knobs.least

    def judge_files(self, directory: Path) -> Score:
        type(self).noise *= -1
        number = float((directory / "file").read_text())
        return number + self.noise, f"the sum of radii is {number}"


class PackingRecipe(SAORecipe):
    name = "packing"
    knobs_type = PackingKnobs
    knobs: PackingKnobs

    def evaluation(self) -> Evaluator:
        return Packing(self.knobs)
