"""The protocol of a recipe: a small class that turns experience into candidates."""

# A recipe in the order of the data. It implements what it needs and inherits the rest.
#
#     traffic, or seek() that asks through the gateway
#        --> unit          `consumes`: a report | a turn and what followed | a session that ended
#        --> signal()      may ask models; computed once, kept as an event
#        --> decide()      pure: a batch, refusals; the others wait
#        --> learner().step() in the step process | propose() of a harness recipe
#        --> candidate     a LoRA, a checkpoint, a harness, a solution
#        --> evaluation()  per-task results come back to on_verdict()
#
# `signal`, `seek` and `on_verdict` run on a thread and an event loop of their own: what blocks
# there holds up this recipe alone. `decide` runs in a thread with a time limit. The learner runs in
# the step process and alone imports torch.

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from reefcommon.evaluator import Evaluator
from reefcommon.events import CandidateProposed, Evaluation, Kind, Policy, Signal, Unit, UnitKind
from reefcommon.ids import LoadId
from reefcommon.recipe_context import Context, SeekContext


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The three dimensions of a recipe, in words for people."""

    signal: str
    evolves: tuple[Kind, ...]
    acquisition: Literal["reactive", "proactive"] = "reactive"


class Knobs(BaseModel):
    """Base of a recipe's knobs."""

    model_config = ConfigDict(extra="forbid", frozen=True)


ScoreRange = tuple[float, float]
"""The lowest and the highest score that a recipe accepts, both included."""

DEFAULT_SCORE_RANGE: ScoreRange = (-100.0, 100.0)


Refusal = tuple[Unit, str, int | None]
"""(unit, reason, lag) of a unit that a recipe will never use. The lag is in loads."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A recipe's decision. A unit in neither part waits."""

    batch: tuple[Unit, ...] = ()
    refused: tuple[Refusal, ...] = ()

    @classmethod
    def of(cls, fit: Sequence[Unit], refused: Sequence[Refusal], size: int) -> "Decision":
        """Take the oldest `size` fit units; while there are fewer, all of them wait."""
        return cls(tuple(fit[:size]) if len(fit) >= size else (), tuple(refused))


def sift(
    units: Sequence[Unit], why_not: Callable[[Unit], str | None]
) -> tuple[list[Unit], list[Refusal]]:
    """Return the units without a reason against them, and the others with theirs."""
    fit: list[Unit] = []
    refused: list[Refusal] = []
    for unit in units:
        if (reason := why_not(unit)) is None:
            fit.append(unit)
        else:
            refused.append((unit, reason, None))
    return fit, refused


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """How candidates are judged: by `tasks`, or by `replay` of held-out samples.

    If `policy` is None, `reefcommon.evaluation.choose` has the default.
    """

    method: Literal["tasks", "replay"] = "replay"
    policy: Policy | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on a candidate of the recipe, with the results and words for each task."""

    candidate: CandidateProposed
    outcome: Literal["published", "pending", "rejected", "aborted"]
    reason: str
    evaluation: Evaluation | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """`action` skip: the batch changed nothing, and there is no candidate."""

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    action: Literal["step", "skip"] = "step"


class Learner(Protocol):
    """The part of a weight recipe in the step process. It holds tensors."""

    def step(self, batch: Sequence[Unit]) -> StepResult:
        """Train on a batch of units with their signals. Raises Poison if this is impossible."""

    def save(self, directory: Path) -> None:
        """Write adapter, critic, optimizers and step, for `load`."""

    def load(self, directory: Path, *, actor_from: Path | None = None) -> None:
        """Read a saved state; the policy and its optimizer from `actor_from` if given."""

    def adopt(self, adapter: Path | None) -> None:
        """Take a PEFT adapter (None: the base model) with a fresh optimizer.

        Raises:
            Poison: the adapter has another shape.
        """

    def export(self, directory: Path) -> None:
        """Write the candidate's files: a PEFT LoRA adapter."""


class Recipe(ABC):
    name: ClassVar[str]
    summary: ClassVar[str]
    dimensions: ClassVar[Dimensions]
    knobs_type: ClassVar[type[Knobs]] = Knobs
    consumes: ClassVar[tuple[UnitKind, ...]] = ("report",)
    """The kinds of units that it uses; no other kind reaches it."""
    shown: ClassVar[str] = ""
    """The result of its demonstration, with command and seeds, for `reef recipes`."""

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs

    @property
    def score_range(self) -> ScoreRange:
        # A single score of 1e30 would outweigh all others in every mean that it enters.
        found: ScoreRange = getattr(self.knobs, "score_range", DEFAULT_SCORE_RANGE)
        return found

    async def signal(self, unit: Unit, ctx: Context) -> Signal | None:
        """Return the signal of a unit, or None to refuse it."""
        # Called only if it is overridden; else the report's score is the signal. A failure is tried
        # again some times, then the unit is refused.
        raise NotImplementedError

    async def seek(self, ctx: SeekContext) -> None:
        """Go after experience: ask, report, learn. A killed call is repeated."""
        # Called only if it is overridden, once for each binding. All that it must know after a
        # crash is in `ctx.store`.
        raise NotImplementedError

    def evaluation(self) -> EvaluationPlan | Evaluator:
        """Return a plan, or an evaluator with tasks and a verifier of its own."""
        return EvaluationPlan()

    async def on_verdict(self, judged: Judged, ctx: Context) -> None:  # noqa: B027 - optional
        """Take the verdict on a candidate. May be repeated."""


class WeightRecipe(Recipe):
    @abstractmethod
    def decide(self, waiting: Sequence[Unit], serving: LoadId) -> Decision:
        """Return the next batch and the refused units. Pure. `waiting`: in order of arrival."""

    @abstractmethod
    def learner(self, model_path: Path) -> Learner:
        """Build the learner on a Hugging Face directory, in the step process."""

    def proposes(self, step: int) -> bool:
        """Return whether optimizer step `step` (from 1) makes a candidate."""
        return step > 0


def has_signal(recipe: Recipe) -> bool:
    return type(recipe).signal is not Recipe.signal


def seeks(recipe: Recipe) -> bool:
    return type(recipe).seek is not Recipe.seek


def lacking(cls: type[Recipe]) -> list[str]:
    named = [name for name in ("name", "summary", "dimensions") if not hasattr(cls, name)]
    return [*named, *sorted(cls.__abstractmethods__)]
