"""Finding and building recipes by name."""

import importlib
import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from pydantic import ValidationError

from reefcommon.errors import BadConfig
from reefcommon.events import UnitKind
from reefcommon.recipe import Recipe, lacking
from reefcommon.settings import explain

_IMPORTING = re.compile(
    "|".join(("<frozen importlib", re.escape(str(importlib.__file__)), re.escape(__file__)))
)
_KINDS = get_args(UnitKind)
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,63}")


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
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the module is its author's code
        raise BadConfig(f"module {module_name} cannot be imported: {_in_one_line(error)}") from None


def _in_one_line(error: BaseException) -> str:
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
        also = ("scenario", "review", "on_stale", "gate", "requires_harness")
        mistakes = explain(error, prefix="reef.", model=cls.knobs_type, also=also)
        raise BadConfig(f"knobs of {dotted}:\n{mistakes}\nAllowed knobs: {allowed}") from None
    for knob, value in checked.model_dump().items():
        if _holds_set(value):
            remedy = "its order is another one in each process; declare it a list or a tuple"
            raise BadConfig(f"knobs of {dotted}: {knob} holds a set: {remedy}")
    try:
        recipe = cls(checked)
        low, high = recipe.score_range
        grows = bool(low < high)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # its author's code
        words = f"{type(error).__name__}: {error}"
        raise BadConfig(f"{dotted} cannot be built, or has no score_range: {words}") from None
    if not grows:
        raise BadConfig(f"{dotted}: score_range must grow, got {low} to {high}")
    _check_class(dotted, cls)
    return recipe


def _holds_set(value: object) -> bool:
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        return any(map(_holds_set, value))
    return isinstance(value, set | frozenset)


def _check_class(dotted: str, cls: type[Recipe]) -> None:
    # A text is a sequence of letters, and would want no unit at all.
    wanted: object = cls.consumes
    if not isinstance(wanted, tuple | list | set | frozenset) or not set(wanted) <= set(_KINDS):
        kinds = ", ".join(map(repr, _KINDS))
        raise BadConfig(f"{dotted}: consumes is a tuple of {kinds}; got {wanted!r:.80}")
    if not isinstance(cls.name, str) or not _NAME.fullmatch(cls.name):
        words = "letters, digits, _ . + -, at most 64"
        raise BadConfig(f"{dotted}: name must consist of {words}; got {cls.name!r:.80}")
