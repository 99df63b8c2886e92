"""A recipe without torch, so that the trainer's own behaviour can be tested in milliseconds.

Its policy is a list of the sample ids that it was trained on, its critic a count. Scores tell the learner what to do:
-1 the batch is poison, 7 the batch is skipped, -2 the process dies (once per marker file), -3 it hangs, -4 it always dies,
-5 the learner raises, -6 it waits for a device.
"""

import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from recipes.policy_gradient.rollouts import admit
from reefcommon import recipe
from reefcommon.errors import Poison, Unavailable
from reefcommon.events import Unit
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Dimensions, Learner, StepResult, WeightRecipe

ADAPTER = "adapter_model.json"


class Knobs(recipe.Knobs):
    """Batch, bound, warm-up and cadence."""

    batch_size: int = 2
    max_staleness: int = 0
    warmup: int = 0
    every: int = 1


class CountingLearner:
    """See the module."""

    def __init__(self, model_path: Path) -> None:
        self.actor: list[str] = []
        self.critic = 0
        self.model_path = model_path

    def step(self, batch: Sequence[Unit]) -> StepResult:
        for sample in batch:
            marker = self.model_path / sample.event_id
            if sample.score == -1:
                raise Poison("nothing can be learnt from -1")
            if sample.score == -2 and not marker.exists():
                marker.touch()
                sys.stdout.write("about to die\n")
                sys.stdout.flush()
                os._exit(9)
            if sample.score == -4:
                sys.stdout.write("dies again\n")
                sys.stdout.flush()
                os._exit(9)
            if sample.score == -5:
                raise OverflowError(sample.event_id)
            if sample.score == -6 and not marker.exists():
                marker.touch()
                raise Unavailable("no GPU")
            if sample.score == -3 and not marker.exists():
                marker.touch()
                time.sleep(60)
        if any(sample.score == 7 for sample in batch):
            return StepResult(step=self.critic, action="skip", metrics={"skipped": 1.0})
        self.actor += [sample.event_id for sample in batch]
        self.critic += 1
        return StepResult(
            step=self.critic,
            metrics={
                "reward_mean": sum(s.score or 0 for s in batch) / len(batch),
                "odd": float("nan"),
            },
        )

    def save(self, directory: Path) -> None:
        self.export(directory)
        (directory / "critic.json").write_text(json.dumps(self.critic))

    def load(self, directory: Path, *, actor_from: Path | None = None) -> None:
        if (self.model_path / "other_rank").exists():
            raise Poison("the saved adapter has another rank")
        self.adopt(actor_from or directory)
        self.critic = json.loads((directory / "critic.json").read_text())

    def adopt(self, adapter: Path | None) -> None:
        self.actor = json.loads((adapter / ADAPTER).read_text()) if adapter else []

    def export(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        (directory / ADAPTER).write_text(json.dumps(self.actor))


class CountingRecipe(WeightRecipe):
    """Takes batches of whatever is fresh."""

    name: ClassVar[str] = "counting"
    summary: ClassVar[str] = "for tests"
    dimensions: ClassVar[Dimensions] = Dimensions(signal="score", evolves=("lora",))
    knobs_type: ClassVar[type[recipe.Knobs]] = Knobs
    knobs: Knobs

    def decide(self, waiting: Sequence[Unit], serving: LoadId) -> Decision:
        found = admit(waiting, serving, self.knobs.max_staleness)
        size = self.knobs.batch_size
        return Decision(
            batch=found.batch[:size] if len(found.batch) >= size else (),
            refused=found.refused,
        )

    def proposes(self, step: int) -> bool:
        return step > self.knobs.warmup and (step - self.knobs.warmup) % self.knobs.every == 0

    def learner(self, model_path: Path) -> Learner:
        return CountingLearner(model_path)
