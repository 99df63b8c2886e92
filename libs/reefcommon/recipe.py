"""What a recipe is: a small class that says how experience becomes a candidate. Importable without torch.

A weight recipe is read in the order of the data:

    samples --decide--> batch --learner().step--> new weights --proposes--> candidate --evaluation--> verdict

`decide` is pure and runs in the trainer's event loop; the learner runs in the step process and alone imports torch.
"""

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
    """The three dimensions of a recipe, as `reef recipes` lists them."""

    signal: str
    acquisition: Literal["reactive", "proactive"]
    evolves: tuple[Kind, ...]


class Knobs(BaseModel):
    """Base of a recipe's knobs: unknown keys are refused, so that a typing mistake in `serve.yaml` is found at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)


ScoreRange = tuple[float, float]
"""The lowest and the highest score that a recipe accepts, both included."""

DEFAULT_SCORE_RANGE: ScoreRange = (-100.0, 100.0)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a recipe does with the samples that wait, oldest first. A sample in neither part goes on waiting."""

    batch: tuple[SampleReady, ...] = ()
    refused: tuple[tuple[SampleReady, str, int | None], ...] = ()
    """(sample, reason, lag): these will never be used by this recipe."""


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """How candidates are judged: by `tasks` with a verifier, or by `replay` of held-out samples.

    If `policy` is None, the method's default applies (see `reefcommon.evaluation.choose`).
    """

    method: Literal["tasks", "replay"] = "replay"
    policy: Policy | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one optimizer step did. `metrics` are finite numbers."""

    step: int
    metrics: Mapping[str, float] = field(default_factory=dict)


class Learner(Protocol):
    """The part of a weight recipe that holds tensors: it lives in the step process."""

    def step(self, batch: Sequence[SampleReady]) -> StepResult:
        """Train on one batch. Raises Poison where the batch can never be trained on."""

    def save(self, directory: Path) -> None:
        """Write everything that `load` needs to go on exactly here: adapter, critic, optimizers, step."""

    def load(self, directory: Path, *, actor_from: Path | None = None) -> None:
        """Go on from a saved state; with `actor_from`, take the policy and its optimizer from another one (a candidate was rejected)."""

    def adopt(self, adapter: Path | None) -> None:
        """Take the policy of a published PEFT adapter (None: the base model as it is) with a fresh optimizer: a release that is not
        of a saved state serves now. Raises Poison where the adapter is of another shape than this recipe trains."""

    def export_adapter(self, directory: Path) -> None:
        """Write the current policy as a PEFT LoRA adapter, as serving nodes load it."""


class Recipe(ABC):
    """Base of all recipes."""

    name: ClassVar[str]
    summary: ClassVar[str]
    dimensions: ClassVar[Dimensions]
    knobs_type: ClassVar[type[Knobs]] = Knobs

    def __init__(self, knobs: Knobs) -> None:
        self.knobs = knobs

    @property
    def score_range(self) -> ScoreRange:
        """The scores that this recipe accepts: its knob of this name, if it has one.

        One score of 1e30 would decide alone over every mean that it enters.
        """
        found: ScoreRange = getattr(self.knobs, "score_range", DEFAULT_SCORE_RANGE)
        return found

    def evaluation(self) -> EvaluationPlan:
        """How its candidates are judged where the configuration does not say."""
        return EvaluationPlan()


class WeightRecipe(Recipe):
    """A recipe whose candidates are weights."""

    @abstractmethod
    def decide(self, waiting: Sequence[SampleReady], serving: LoadId) -> Decision:
        """Admit, refuse or wait. Pure; `waiting` is in order of arrival."""

    @abstractmethod
    def learner(self, model_path: Path) -> Learner:
        """Build the learner on a base model (a Hugging Face directory). Called in the step process only."""

    def proposes(self, step: int) -> bool:
        """Whether the state after optimizer step `step` (1, 2, …) becomes a candidate."""
        return step > 0


def resolve(dotted: str) -> Any:
    """The object that `package.module:NAME` names.

    Raises:
        BadConfig: there is no such module or name.
    """
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
    """Import a module that a configuration or a person names.

    Raises:
        BadConfig: it is not there, or it fails; the message has the author's file and line.
    """
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise BadConfig(
            f"no module {error.name!r}; is its folder installed or on PYTHONPATH?"
        ) from None
    except Exception as error:  # a module of somebody else's may raise anything
        raise BadConfig(f"module {module_name} cannot be imported: {_in_one_line(error)}") from None


def lacking(cls: type[Recipe]) -> list[str]:
    """Names that a recipe class must define and does not."""
    named = [name for name in ("name", "summary", "dimensions") if not hasattr(cls, name)]
    return [*named, *sorted(cls.__abstractmethods__)]


def _in_one_line(error: Exception) -> str:
    """The error with its file and line. A SyntaxError already says where."""
    words = " ".join(str(error).split())
    if isinstance(error, SyntaxError):
        return words
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not _IMPORTING.match(frame.filename)
    ]
    # the deepest line beside the module: what its author wrote, not the library that was called there
    own = [
        frame for frame in frames if Path(frame.filename).parent == Path(frames[0].filename).parent
    ]
    where = f" ({Path(own[-1].filename).name}, line {own[-1].lineno})" if own else ""
    return f"{type(error).__name__}{': ' if words else ''}{words}{where}"


def load_recipe(dotted: str, knobs: Mapping[str, Any]) -> Recipe:
    """Build the recipe that `serve.yaml` names, with its knobs checked.

    Raises:
        BadConfig: no such recipe, or a knob is not allowed; the message names the key, the value and what is allowed.
    """
    cls = resolve(dotted)
    if not (isinstance(cls, type) and issubclass(cls, Recipe)):
        raise BadConfig(
            f"{dotted} is not a recipe: it must derive from reefcommon.recipe.WeightRecipe"
        )
    if missing := lacking(cls):
        raise BadConfig(f"{dotted} is not finished: the class lacks {', '.join(missing)}")
    try:
        checked = cls.knobs_type.model_validate(dict(knobs))
    except ValidationError as error:
        allowed = ", ".join(cls.knobs_type.model_fields)
        also = ("scenario", "review", "on_stale")
        mistakes = explain(error, prefix="reef.", model=cls.knobs_type, also=also)
        raise BadConfig(f"knobs of {dotted}:\n{mistakes}\nAllowed knobs: {allowed}") from None
    return cls(checked)
