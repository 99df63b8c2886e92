"""A second weight recipe, so that two of one kind learn from a scenario."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from reefcommon.events import Unit
from reefcommon.recipe import Learner, StepResult
from tests.trainer.counting import CountingLearner, CountingRecipe


class BackwardsLearner(CountingLearner):
    def step(self, batch: Sequence[Unit]) -> StepResult:
        return super().step(tuple(reversed(batch)))


class BackwardsRecipe(CountingRecipe):
    """Its weights are others than those of `counting`."""

    name: ClassVar[str] = "backwards"

    def learner(self, model_path: Path) -> Learner:
        return BackwardsLearner(model_path)
