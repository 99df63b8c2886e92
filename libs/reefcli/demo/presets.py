"""What the demonstration can show: a model, its `serve.yaml`, its tasks, and how long it may take."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reefcommon.recipe import resolve

Task = Any
"""A prompt (str) or a list of chat messages."""


@dataclass(frozen=True, slots=True)
class Preset:
    """One demonstration. The goal is reached with `releases_goal` releases and a held-out reward of at least `reward_goal`."""

    model: str
    about: str
    config: Path
    tasks: str
    users: int
    max_tokens: int
    batch: int
    heldout_samples: int
    deadline_s: float
    reward_goal: float = 0.9
    releases_goal: int = 5

    @property
    def training_tasks(self) -> Sequence[Task]:
        """What the simulated users ask."""
        tasks: Sequence[Task] = resolve(f"{self.tasks}:TRAIN")
        return tasks

    @property
    def heldout_tasks(self) -> Sequence[Task]:
        """What they never ask: the served model is measured on these."""
        tasks: Sequence[Task] = resolve(f"{self.tasks}:HELDOUT")
        return tasks

    @property
    def score(self) -> Callable[[Task, str], float]:
        """(task, answer) -> reward in 0..1."""
        score: Callable[[Task, str], float] = resolve(f"{self.tasks}:score")
        return score


EXAMPLES = Path(__file__).parents[3] / "recipes" / "sao" / "examples"

PRESETS = {
    "smollm2": Preset(
        model="smollm2",
        about="SmolLM2-135M-Instruct learns a preference of its users: an answer that starts with Hello",
        config=EXAMPLES / "hello" / "serve.yaml",
        tasks="recipes.sao.examples.hello.tasks",
        users=8,
        max_tokens=3,
        batch=16,
        heldout_samples=4,
        deadline_s=15 * 60,
    ),
    "tiny": Preset(
        model="tiny",
        about="a random-init Llama of 0.1 M parameters learns to write lower-case letters",
        config=EXAMPLES / "tiny" / "serve.yaml",
        tasks="recipes.sao.examples.tiny.tasks",
        users=8,
        max_tokens=12,
        batch=32,
        heldout_samples=4,
        deadline_s=5 * 60,
    ),
}


def as_messages(task: Task) -> list[dict[str, Any]]:
    """A task as chat messages."""
    return (
        [{"role": "user", "content": task}]
        if isinstance(task, str)
        else [dict(message) for message in task]
    )
