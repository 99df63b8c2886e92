"""`reef recipes`: the learning methods that are installed, each with its three dimensions."""

import difflib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated, TypeGuard

import typer

from reefcli.errors import CommandFailed
from reefcli.options import AsJson
from reefcli.output import print_json, print_table
from reefcommon.recipe import Recipe


@dataclass(frozen=True, slots=True)
class Listed:
    """One recipe as it is listed. `evolves`: what a candidate of it changes."""

    recipe: str
    name: str
    summary: str
    signal: str
    acquisition: str
    evolves: tuple[str, ...]
    knobs: dict[str, str]


def recipes(
    where: Annotated[
        list[str] | None,
        typer.Argument(
            help="Only this recipe (package.module:Class), or further packages or modules to look in."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """The learning methods that are installed.

    Each is described by what it learns from (signal), how its experience comes about (given by tasks and users: reactive; sought by
    the agent: proactive), and what it changes (evolves). The first column goes into serve.yaml as `recipe:`.

    Examples:

      reef recipes

      reef recipes recipes.sao.recipe:SAORecipe --json

      reef recipes my_recipes.mine
    """
    sys.path.insert(0, str(Path.cwd()))
    found: dict[str, Listed] = {}
    named = [name for name in where or () if ":" in name]
    packages = [name for name in where or () if ":" not in name]
    found.update({name: _named(name) for name in named})
    for name in packages if named else ("recipes", *packages):
        for module in modules(name):
            found.update({listed.recipe: listed for listed in recipes_in(module)})
    rows = [found[key] for key in sorted(found)]
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    table = [(r.recipe, r.signal, r.acquisition, ", ".join(r.evolves), r.summary) for r in rows]
    print_table(
        ("recipe", "signal", "acquisition", "evolves", "what it does"),
        table,
        empty="no recipe is installed",
    )


def modules(name: str) -> Iterator[ModuleType]:
    """A module, and all modules below it where it is a package.

    Raises:
        CommandFailed: it cannot be imported.
    """
    root = _import(name)
    yield root
    for info in pkgutil.walk_packages(getattr(root, "__path__", ()), prefix=f"{root.__name__}."):
        if not info.name.rpartition(".")[2].startswith("_"):
            yield _import(info.name)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        advice = meant(name) or "Is its folder installed, or do you stand in its parent folder?"
        raise CommandFailed(f"cannot import {name}: {error}. {advice}") from None


def meant(word: str) -> str:
    """`Did you mean …?` where an installed recipe is called so in short, or nearly; else empty."""
    known = {
        name: listed.recipe
        for module in modules("recipes")
        for listed in recipes_in(module)
        for name in _names(listed)
    }
    close = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.75)
    return f"Did you mean {known[close[0]]}?" if close else ""


def _names(listed: Listed) -> tuple[str, ...]:
    module, _, cls = listed.recipe.partition(":")
    return listed.name.lower(), module.split(".")[1], cls.lower(), listed.recipe.lower()


def _named(dotted: str) -> Listed:
    """The recipe that `package.module:Class` names. Raises CommandFailed."""
    module_name, _, class_name = dotted.partition(":")
    module = _import(module_name)
    cls = vars(module).get(class_name)
    if not _is_recipe(cls):
        there = ", ".join(listed.recipe for listed in recipes_in(module)) or "none"
        raise CommandFailed(f"{dotted} is not a recipe; those in {module_name}: {there}")
    return _listed(dotted, cls)


def recipes_in(module: ModuleType) -> Iterator[Listed]:
    """The recipes that a module defines: concrete classes, not those that it imports."""
    for cls in vars(module).values():
        if _is_recipe(cls) and cls.__module__ == module.__name__:
            yield _listed(f"{module.__name__}:{cls.__name__}", cls)


def _is_recipe(cls: object) -> TypeGuard[type[Recipe]]:
    return (
        inspect.isclass(cls)
        and issubclass(cls, Recipe)
        and not inspect.isabstract(cls)
        and hasattr(cls, "dimensions")
    )


def _listed(dotted: str, cls: type[Recipe]) -> Listed:
    dimensions = cls.dimensions
    return Listed(
        recipe=dotted,
        name=cls.name,
        summary=cls.summary,
        signal=dimensions.signal,
        acquisition=dimensions.acquisition,
        evolves=tuple(dimensions.evolves),
        knobs={key: str(field.default) for key, field in cls.knobs_type.model_fields.items()},
    )
