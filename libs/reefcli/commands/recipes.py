"""`reef recipes`: the learning methods that are installed, each with its three dimensions."""

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Annotated

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
    where: Annotated[list[str] | None, typer.Argument(help="Further packages or modules to look in, for example my_recipes.mine")] = None,
    as_json: AsJson = False,
) -> None:
    """The learning methods that are installed.

    Each is described by what it learns from (signal), how its experience comes about (given by tasks and users: reactive; sought by
    the agent: proactive), and what it changes (evolves). The first column goes into serve.yaml as `recipe:`.

    Examples:

      reef recipes

      reef recipes my_recipes.mine --json
    """
    sys.path.insert(0, str(Path.cwd()))
    found: dict[str, Listed] = {}
    for name in ("recipes", *(where or ())):
        for module in modules(name):
            found.update({listed.recipe: listed for listed in recipes_in(module)})
    rows = [found[key] for key in sorted(found)]
    if as_json:
        print_json([{field: getattr(row, field) for field in row.__slots__} for row in rows])
        return
    table = [(r.recipe, r.signal, r.acquisition, ", ".join(r.evolves), r.summary) for r in rows]
    print_table(("recipe", "signal", "acquisition", "evolves", "what it does"), table, empty="no recipe is installed")


def modules(name: str) -> Iterator[ModuleType]:
    """A module, and all modules below it where it is a package. `package.module:Class` is taken for its module.

    Raises:
        CommandFailed: it cannot be imported.
    """
    root = _import(name.partition(":")[0])
    yield root
    for info in pkgutil.walk_packages(getattr(root, "__path__", ()), prefix=f"{root.__name__}."):
        if not info.name.rpartition(".")[2].startswith("_"):
            yield _import(info.name)


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise CommandFailed(f"cannot import {name}: {error}. Is its folder installed, or do you stand in its parent folder?") from None


def recipes_in(module: ModuleType) -> Iterator[Listed]:
    """The recipes that a module defines: concrete classes, not those that it imports."""
    for cls in vars(module).values():
        own = inspect.isclass(cls) and issubclass(cls, Recipe) and cls.__module__ == module.__name__
        if own and not inspect.isabstract(cls) and hasattr(cls, "dimensions"):
            dimensions = cls.dimensions
            yield Listed(
                recipe=f"{module.__name__}:{cls.__name__}",
                name=cls.name,
                summary=cls.summary,
                signal=dimensions.signal,
                acquisition=dimensions.acquisition,
                evolves=tuple(dimensions.evolves),
                knobs={key: str(field.default) for key, field in cls.knobs_type.model_fields.items()},
            )
