"""`reef recipes`: the learning methods that are installed, each with its three dimensions."""

import difflib
import importlib.util
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Annotated, TypeGuard

import typer
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reefcli.commands.recipe_state import recipe_state
from reefcli.errors import CommandFailed
from reefcli.field_words import default, kind
from reefcli.options import DEFAULT_STATE_DIR, AsJson, StateDir, Url
from reefcli.output import console, print_json, print_story, print_table
from reefcommon.errors import BadConfig
from reefcommon.meanings import meaning
from reefcommon.recipe import Knobs, Recipe, lacking
from reefcommon.recipe_loading import import_named

_DEFINES_ONE = re.compile(r"^class \w+\([^)]*Recipe\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Listed:
    """A recipe as it is listed. `evolves`: its target, the kinds that its candidates change.

    A knob is a key that serve.yaml may set: `default`, `kind` (type and bounds), `meaning`.
    """

    recipe: str
    name: str
    summary: str
    signal: str
    acquisition: str
    evolves: tuple[str, ...]
    consumes: tuple[str, ...]
    knobs: dict[str, dict[str, str]]
    shown: str

    @property
    def target(self) -> str:
        return ", ".join(self.evolves)

    @property
    def units(self) -> str:
        return ", ".join(self.consumes)


_NAMES = "A recipe (package.module:Class), or further packages to look in."
_Names = Annotated[list[str] | None, typer.Argument(help=_NAMES)]
_KNOBS = "All of each recipe: its knobs too, with defaults and meaning."
_Knobs = Annotated[bool, typer.Option("--knobs", help=_KNOBS)]
_LABELS = ("signal", "consumes", "does", "shown here")
_COLUMNS = ("recipe", "signal", "acquisition", "target", "consumes", "what it does", "shown here")


def recipes(
    where: _Names = None,
    knobs: _Knobs = False,
    as_json: AsJson = False,
    url: Url = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
) -> None:
    """The learning methods that are installed, grouped by their three dimensions.

    A recipe learns from a signal. It acquires experience reactively (from tasks and users) or
    proactively (sought by the agent). Its target is the kinds that it evolves. The first column
    goes into serve.yaml as `recipe:`.

    Examples:

      reef recipes

      reef recipes --knobs

      reef recipes recipes.sao.recipe:SAORecipe

      reef recipes my_recipes.mine --json

      reef recipes state default    what the bound recipes of a scenario keep, and whom they asked
    """
    if where and where[0] == "state":
        recipe_state(where[1:], url, state_dir, as_json=as_json)
        return
    # A recipe of one's own lies in the working directory.
    sys.path.insert(0, str(Path.cwd()))
    named = [name for name in where or () if ":" in name]
    packages = [name for name in where or () if ":" not in name]
    found = {name: _named(name) for name in named}
    for name in packages if named else ("recipes", *packages):
        for module in modules(name):
            found.update({listed.recipe: listed for listed in recipes_in(module)})
    rows = sorted(found.values(), key=_dimensions)
    if as_json:
        print_json([asdict(row) for row in rows])
    elif knobs or (named and len(rows) == 1):
        for row in rows:
            _print_one(row)
    else:
        _print_groups(rows)


def _dimensions(row: Listed) -> tuple[str, ...]:
    # Reactive before proactive: the simpler way comes first.
    return str(row.acquisition == "proactive"), row.target, row.signal, row.recipe


def _print_groups(rows: Sequence[Listed]) -> None:
    out = console()
    if not out.is_terminal or not rows:
        table = [(*_cells(r)[:2], r.acquisition, r.target, *_cells(r)[2:]) for r in rows]
        print_table(_COLUMNS, table, empty="no recipe is installed")
        return
    for (acquisition, target), group in groupby(rows, lambda row: (row.acquisition, row.target)):
        out.print(f"{acquisition}, target {target}", style="bold", markup=False)
        for row in group:
            out.print(f"  {row.recipe}", markup=False, soft_wrap=True)
            grid = Table.grid(padding=(0, 2))
            for label, text in zip(_LABELS, _cells(row)[1:], strict=True):
                if text:
                    grid.add_row(Text(label, style="dim"), Text(text))
            out.print(Padding(grid, (0, 0, 0, 4)))
    out.print("`reef recipes RECIPE` shows the knobs of one, `--knobs` those of all.", style="dim")


def _cells(row: Listed) -> tuple[str, ...]:
    return row.recipe, row.signal, row.units, row.summary, row.shown


def _print_one(row: Listed) -> None:
    lines = [(name, getattr(row, name)) for name in ("recipe", "summary", "signal", "acquisition")]
    shown = row.shown or "nothing yet"
    print_story([*lines, ("target", row.target), ("consumes", row.units), ("shown here", shown)])
    knobs = [(key, *knob.values()) for key, knob in row.knobs.items()]
    print_table(("knob", "default", "type", "meaning"), knobs, empty="no knobs of its own")
    typer.echo()


def modules(name: str) -> Iterator[ModuleType]:
    """A module and, if it is a package, all modules below it.

    Raises:
        CommandFailed: an import fails.
    """
    root = _import(name)
    yield root
    for info in pkgutil.walk_packages(getattr(root, "__path__", ()), prefix=f"{root.__name__}."):
        spec = importlib.util.find_spec(info.name)
        # Only modules that define a recipe are imported: the others may need torch.
        if spec and spec.origin and _DEFINES_ONE.search(Path(spec.origin).read_text("utf-8")):
            yield _import(info.name)


def _import(name: str) -> ModuleType:
    try:
        return import_named(name)
    except BadConfig as error:
        words = str(error)
        ended = words if words.endswith("?") else f"{words}."
        raise CommandFailed(f"cannot import {name}: {ended} {meant(name)}".rstrip()) from None


def meant(word: str) -> str:
    """`Did you mean …?` if an installed recipe has nearly this short name; else empty."""
    installed = [listed for module in modules("recipes") for listed in recipes_in(module)]
    known = {name: listed.recipe for listed in installed for name in _names(listed)}
    close = difflib.get_close_matches(word.lower(), known, n=1, cutoff=0.75)
    return f"Did you mean {known[close[0]]}?" if close else ""


def _names(listed: Listed) -> tuple[str, ...]:
    module, _, cls = listed.recipe.partition(":")
    return listed.name.lower(), module.split(".")[1], cls.lower(), listed.recipe.lower()


def _named(dotted: str) -> Listed:
    module_name, _, class_name = dotted.partition(":")
    module = _import(module_name)
    cls = vars(module).get(class_name)
    if inspect.isclass(cls) and issubclass(cls, Recipe) and (missing := lacking(cls)):
        raise CommandFailed(f"{dotted} is not finished: the class lacks {', '.join(missing)}")
    if not _is_recipe(cls):
        there = ", ".join(listed.recipe for listed in recipes_in(module)) or "none"
        raise CommandFailed(f"{dotted} is not a recipe; those in {module_name}: {there}")
    return _listed(dotted, cls)


def recipes_in(module: ModuleType) -> Iterator[Listed]:
    """The recipes that a module defines: concrete classes, not those that it imports."""
    for cls in vars(module).values():
        # A class that was imported belongs to the module that defines it.
        if _is_recipe(cls) and cls.__module__ == module.__name__:
            yield _listed(f"{module.__name__}:{cls.__name__}", cls)


def _is_recipe(cls: object) -> TypeGuard[type[Recipe]]:
    return inspect.isclass(cls) and issubclass(cls, Recipe) and not lacking(cls)


def _listed(dotted: str, cls: type[Recipe]) -> Listed:
    return Listed(
        recipe=dotted,
        name=cls.name,
        summary=cls.summary,
        signal=cls.dimensions.signal,
        acquisition=cls.dimensions.acquisition,
        evolves=tuple(cls.dimensions.evolves),
        consumes=tuple(cls.consumes),
        knobs={key: _knob(cls.knobs_type, key) for key in cls.knobs_type.model_fields},
        # Its own: a recipe that varies another has not shown what that has.
        shown=" ".join(vars(cls).get("shown", "").split()),
    )


def _knob(knobs: type[Knobs], key: str) -> dict[str, str]:
    field = knobs.model_fields[key]
    shown = {"default": default(field), "kind": kind(field)}
    plain = {name: markdown.replace("`", "") for name, markdown in shown.items()}
    return plain | {"meaning": meaning(knobs, key)}
