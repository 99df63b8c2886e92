"""The demonstrations: model, `serve.yaml`, tasks, time."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reefcommon.recipe_loading import resolve

Task = Any
"""A prompt (str) or a list of chat messages."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A demonstration.

    The goal: `releases_goal` trained releases, and a held-out reward with its 95 % interval above
    `reward_goal`. A measurement asks each test question `test_samples` times.
    """

    model: str
    about: str
    signal: str
    """How an answer is judged, in words."""
    example: str
    """The folder with its `serve.yaml` and its tasks."""
    max_tokens: int
    batch: int
    deadline_s: float
    users: int = 8
    # 24 questions: 96 answers, an interval of about 0.2 in the middle and 0.1 near 1.
    test_samples: int = 4
    shown_tokens: int = 16
    # near 1 both sides win all tasks, and no candidate can be told from its head
    reward_goal: float = 0.7
    releases_goal: int = 5

    @property
    def config(self) -> Path:
        return EXAMPLES / self.example / "serve.yaml"

    @property
    def training_tasks(self) -> list[Task]:
        return list(self._named("TRAIN"))

    @property
    def test_tasks(self) -> list[Task]:
        """Questions that neither users nor the evaluator ask: releases are measured on these."""
        return list(self._named("TEST"))

    def score(self, task: Task, answer: str) -> float:
        return float(self._named("score")(task, answer))

    def _named(self, name: str) -> Any:
        return resolve(f"recipes.sao.examples.{self.example}.tasks:{name}")


EXAMPLES = Path(__file__).parents[3] / "recipes" / "sao" / "examples"

PRESETS = {
    "smollm2": Preset(
        model="smollm2",
        about="SmolLM2-135M learns a preference that no prompt mentions: dictionary style",
        signal='1 if the answer opens with "A" or "An", as in a dictionary; else 0',
        example="dictionary",
        # The first word decides the reward; three tokens make a step short.
        max_tokens=3,
        batch=16,
        deadline_s=15 * 60,
    ),
    "tiny": Preset(
        model="tiny",
        about="a random Llama of 0.1 M parameters learns to write lower-case letters",
        signal="the share of lower-case letters in the answer",
        example="tiny",
        max_tokens=12,
        batch=32,
        deadline_s=5 * 60,
        reward_goal=0.9,
    ),
}


def as_messages(task: Task) -> list[dict[str, Any]]:
    messages = [{"role": "user", "content": task}] if isinstance(task, str) else task
    return [dict(message) for message in messages]
