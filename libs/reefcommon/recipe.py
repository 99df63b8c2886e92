"""The protocol of a recipe: a small class that turns samples into candidates."""

# A weight recipe in the order of the data:
#
#     samples --decide--> batch --learner().step--> weights --proposes--> candidate --> verdict
#
# `decide` is pure and runs in a thread with a time limit. The learner runs in the step process and
# alone imports torch.

import importlib
import re
import traceback
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from reefcommon.errors import BadConfig
from reefcommon.events import Kind, Policy, SampleReady
from reefcommon.ids import LoadId
from reefcommon.settings import explain

_IMPORTING = re.compile(
    "|".join(("<frozen importlib", re.escape(str(importlib.__file__)), re.escape(__file__)))
)


@dataclass(frozen=True, slots=True)
class Dimensions:
    signal: str
    acquisition: Literal["reactive", "proactive"]
    evolves: tuple[Kind, ...]


class Knobs(BaseModel):
    """Base of a recipe's knobs."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


ScoreRange = tuple[float, float]
"""The lowest and the highest score that a recipe accepts, both included."""

DEFAULT_SCORE_RANGE: ScoreRange = (-100.0, 100.0)


Refusal = tuple[SampleReady, str, int | None]
"""(sample, reason, lag) of a sample that a recipe will never use. The lag is in loads."""


@dataclass(frozen=True, slots=True)
class Decision:
    """A recipe's decision. A sample in neither part waits."""

    batch: tuple[SampleReady, ...] = ()
    refused: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """How candidates are judged: by `tasks`, or by `replay` of held-out samples.

    If `policy` is None, `reefcommon.evaluation.choose` has the default.
    """

    method: Literal["tasks", "replay"] = "replay"
    policy: Policy | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)


class Learner(Protocol):
    """The part of a weight recipe in the step process. It holds tensors."""

    def step(self, batch: Sequence[SampleReady]) -> StepResult:
        """Train on a batch. Raises Poison if this is impossible."""

    def save(self, directory: Path) -> None:
        """Write adapter, critic, optimizers and step, for `load`."""

    def load(self, directory: Path, *, actor_from: Path | None = None) -> None:
        """Read a saved state; the policy and its optimizer from `actor_from` if given."""

    def adopt(self, adapter: Path | None) -> None:
        """Take a PEFT adapter (None: the base model) with a fresh optimizer.

        Raises:
            Poison: the adapter has another shape.
        """

    def export_adapter(self, directory: Path) -> None:
        """Write the policy as a PEFT LoRA adapter."""


class Recipe(ABC):
    name: ClassVar[str]
    summary: ClassVar[str]
    dimensions: ClassVar[Dimensions]
    knobs_type: ClassVar[type[Knobs]] = Knobs

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs

    @property
    def score_range(self) -> ScoreRange:
        # A single score of 1e30 would outweigh all others in every mean that it enters.
        found: ScoreRange = getattr(self.knobs, "score_range", DEFAULT_SCORE_RANGE)
        return found

    def evaluation(self) -> EvaluationPlan:
        return EvaluationPlan()


class WeightRecipe(Recipe):
    @abstractmethod
    def decide(self, waiting: Sequence[SampleReady], serving: LoadId) -> Decision:
        """Return the next batch and the refused samples. Pure. `waiting`: in order of arrival."""

    @abstractmethod
    def learner(self, model_path: Path) -> Learner:
        """Build the learner on a Hugging Face directory, in the step process."""

    def proposes(self, step: int) -> bool:
        """Return whether optimizer step `step` (from 1) makes a candidate."""
        return step > 0


def resolve(dotted: str) -> Any:
    """Return the object `package.module:NAME`. Raises BadConfig."""
    module_name, _, name = dotted.partition(":")
    if not module_name or not name:
        raise BadConfig(f"{dotted} names nothing: write package.module:NAME")
    try:
        return getattr(import_named(module_name), name)
    except BadConfig as error:
        raise BadConfig(f"{dotted}: {error}") from None
    except AttributeError:
        raise BadConfig(f"{dotted}: module {module_name} has no {name!r}") from None


def import_named(module_name: str) -> ModuleType:
    """Import a module. Raises BadConfig with the author's file and line."""
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        remedy = "is its folder installed or on PYTHONPATH?"
        raise BadConfig(f"no module {error.name!r}; {remedy}") from None
    except Exception as error:  # noqa: BLE001  # the module is its author's code
        raise BadConfig(f"module {module_name} cannot be imported: {_in_one_line(error)}") from None


def lacking(cls: type[Recipe]) -> list[str]:
    named = [name for name in ("name", "summary", "dimensions") if not hasattr(cls, name)]
    return [*named, *sorted(cls.__abstractmethods__)]


def _in_one_line(error: Exception) -> str:
    words = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        return words
    frames = traceback.extract_tb(error.__traceback__)
    own = [(Path(f.filename), f.lineno) for f in frames if not _IMPORTING.match(f.filename)]
    # The deepest line beside the module: its author's, not that of a library.
    beside = [(path.name, line) for path, line in own if path.parent == own[0][0].parent]
    where = f" ({beside[-1][0]}, line {beside[-1][1]})" if beside else ""
    return f"{type(error).__name__}{': ' if words else ''}{words}{where}"


def load_recipe(dotted: str, knobs: Mapping[str, Any]) -> Recipe:
    """Build the recipe that `serve.yaml` names. Raises BadConfig, also for its knobs."""
    cls = resolve(dotted)
    if not (isinstance(cls, type) and issubclass(cls, Recipe)):
        remedy = "it must derive from reefcommon.recipe.WeightRecipe"
        raise BadConfig(f"{dotted} is not a recipe: {remedy}")
    if missing := lacking(cls):
        raise BadConfig(f"{dotted} is not finished: the class lacks {', '.join(missing)}")
    try:
        checked = cls.knobs_type.model_validate(dict(knobs))
    except ValidationError as error:
        allowed = ", ".join(cls.knobs_type.model_fields)
        also = ("scenario", "review", "on_stale")
        mistakes = explain(error, prefix="reef.", model=cls.knobs_type, also=also)
        raise BadConfig(f"knobs of {dotted}:\n{mistakes}\nAllowed knobs: {allowed}") from None
    try:
        recipe = cls(checked)
        low, high = recipe.score_range
    except Exception as error:  # noqa: BLE001  # its author's code
        words = f"{type(error).__name__}: {error}"
        raise BadConfig(f"{dotted} cannot be built, or has no score_range: {words}") from None
    if not low < high:
        raise BadConfig(f"{dotted}: score_range must grow, got {low} to {high}")
    return recipe
