"""A demonstration of a recipe: its users, its held-out measurement, its goal and its arms."""

# It lies beside the recipe, in `recipes/NAME/demo.py`, whose `DEMONSTRATIONS` maps the name of a
# model to a function that builds one; the first is the default. `reef demo --recipe NAME` finds it
# by that name, starts the stack of its `serve.yaml`, lets its users in, measures each release, and
# ends when the goal is reached or the time is up. Every run has an instance of its own, which may
# keep whatever its users need to remember.
#
# A recipe that seeks has `users=0`: nobody visits, the seed of the run is the binding's `seed`, and
# the run ends when the seeker is done, so that all arms have the same budget. Its figure may be
# another than the share of right answers: override `measure`, and name it with `figure` and `most`.

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Protocol

from reefcommon.events import SignalComputed
from reefcommon.statistics import independent_seed, mean_interval

_ASKED_AT_ONCE = 16

Task = str | Sequence[Mapping[str, Any]]
"""A prompt, or a list of chat messages."""


def as_messages(task: Task) -> list[dict[str, Any]]:
    messages = [{"role": "user", "content": task}] if isinstance(task, str) else task
    return [dict(message) for message in messages]


@dataclass(frozen=True, slots=True)
class Arm:
    """A variant: knobs, or a recipe (`package.module:Class`), in place of those in serve.yaml.

    A knob of None is left out.
    """

    name: str
    about: str = ""
    knobs: Mapping[str, Any] = field(default_factory=dict)
    recipe: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    receipt: str
    release_id: str


@dataclass(frozen=True, slots=True)
class Measured:
    """A figure with its 95 % interval, and the number of answers behind it."""

    mean: float
    low: float
    high: float
    answers: int

    @classmethod
    def of(cls, means: Sequence[float], answers: int) -> "Measured":
        """Return the mean over questions, each in [0, 1]. Raises ValueError for fewer than two."""
        return cls(*mean_interval(means), answers)


class Stage(Protocol):
    """The running stack, as a demonstration sees it."""

    @property
    def arm(self) -> Arm: ...

    @property
    def seed(self) -> int: ...

    @property
    def gateway_url(self) -> str: ...

    @property
    def state_dir(self) -> Path: ...

    async def ask(
        self, task: Task, *, max_tokens: int, seed: int, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Ask the served model as a user does. The exchange is recorded."""

    async def report(
        self,
        receipt: str,
        score: float,
        metadata: Mapping[str, Any] | None = None,
        feedback: str | None = None,
    ) -> None:
        """Report a reward on an answer, perhaps with words."""

    def experienced(self, release_id: str, reward: float | None = None) -> None:
        """Count an answer that becomes experience; `reward` as its user feels it."""

    async def sampled(
        self, release_id: str, task: Task, *, max_tokens: int, n: int, seed: int
    ) -> list[str]:
        """Return `n` answers of a release. They are not recorded."""

    def say(self, text: str) -> None:
        """Print a line, and keep it in the log."""


@dataclass(kw_only=True)
class Demonstration:
    """A demonstration. The goal: `releases_goal` trained releases, and a held-out figure whose
    95 % interval lies above `goal`.
    """

    recipe: str
    model: str
    about: str
    signal: str
    """How an answer is judged, in words."""
    config: Path
    test_tasks: Sequence[Task] = ()
    """Questions that neither users nor the evaluator ask: releases are measured on these."""
    max_tokens: int
    batch: int
    """Units of experience that a step takes: users pause while more than two batches wait."""
    minutes: float
    users: int = 8
    arms: tuple[Arm, ...] = (Arm("method"),)
    """The first is the method itself; the others are its controls."""
    # 24 questions: 96 answers, an interval of about 0.2 in the middle and 0.1 near 1.
    test_samples: int = 4
    shown_tokens: int = 16
    # near 1 both sides win all tasks, and no candidate can be told from its head
    goal: float = 0.7
    releases_goal: int = 5
    figure: str = "held-out reward"
    """The measured quantity."""
    most: float = 1.0
    """The end of the figure's scale, which begins at 0."""

    @property
    def seeks(self) -> bool:
        return self.users == 0

    def score(self, task: Task, answer: str) -> float:
        """Return the worth of a held-out answer, in [0, 1]."""
        raise NotImplementedError

    async def visit(self, stage: Stage, rng: random.Random) -> None:
        """Be a user for one conversation. Called again and again by each of `users` users."""
        raise NotImplementedError

    async def measure(self, stage: Stage, release_id: str, measurement: int, n: int) -> Measured:
        """Measure a release by `n` answers to each test task; `measurement` draws its seeds."""
        # All at once, the last answer of many would outlast its client on a busy machine, and users
        # would wait behind them.
        turns = asyncio.Semaphore(_ASKED_AT_ONCE)

        async def asked(number: int, task: Task) -> list[str]:
            seed = independent_seed("heldout", stage.seed, measurement, number)
            tokens = self.max_tokens
            async with turns:
                return await stage.sampled(release_id, task, max_tokens=tokens, n=n, seed=seed)

        found = await asyncio.gather(*(asked(*each) for each in enumerate(self.test_tasks)))
        means = [
            fmean(self.score(task, text) for text in texts)
            for task, texts in zip(self.test_tasks, found, strict=True)
        ]
        return Measured.of(means, sum(map(len, found)))

    def prepare(self, _model: Callable[[], Path], _place: Path) -> Mapping[str, Any]:
        """Make what the recipe needs besides the served model, in a directory. Returns knobs.

        `_model()` is the directory of the served model. Blocks.
        """
        return {}

    @contextmanager
    def endpoints(self) -> Iterator[Mapping[str, str]]:
        """Run the endpoints that `models:` needs. Yields name -> base URL."""
        yield {}

    @contextmanager
    def engine(self) -> Iterator[str]:
        """Run a scripted model in place of the served one. Yields its URL; "": there is none."""
        yield ""

    def line(self, _event: SignalComputed) -> str | None:
        """Return a line about a signal, or None."""
        return None

    def panel(self) -> list[str]:
        """Return the lines that a terminal shows, and draws anew each moment."""
        return []

    def files(self) -> Mapping[str, bytes]:
        """Return files that are kept beside the figures after the run."""
        return {}


Factories = Mapping[str, Callable[[], Demonstration]]
"""Model -> the function that builds its demonstration: `DEMONSTRATIONS` of a recipe."""
