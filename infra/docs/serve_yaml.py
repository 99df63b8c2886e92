"""The tables of docs/serve-yaml.md."""

import importlib
import re
from collections.abc import Callable, Mapping
from functools import partial

from pydantic import BaseModel

from infra.docs import markdown
from infra.docs.settings import ROOT
from reefcli.commands.recipes import recipes_in
from reefcli.field_words import default, kind
from reefcommon.config import ServeConfig
from reefcommon.config_agent import AgentSection
from reefcommon.config_sections import ModelEndpoint, RecipeBinding
from reefcommon.meanings import meaning
from reefcommon.recipe import Knobs, Recipe
from reefcommon.recipe_loading import resolve

Row = tuple[str, str, str, str]


def table(model: type[BaseModel]) -> str:
    """Return a Markdown table of a model's keys."""
    return _table(_rows(model))


def _rows(model: type[BaseModel]) -> dict[str, Row]:
    return {
        key: (f"`{key}`", kind(field), default(field).replace("\n", "\\n"), meaning(model, key))
        for key, field in model.model_fields.items()
    }


def _table(rows: Mapping[str, Row]) -> str:
    return markdown.table(("key", "type", "default", "meaning"), rows.values())


def section(name: str) -> str:
    return table(type(ServeConfig.model_fields[name].default))


def recipes() -> dict[str, type[Recipe]]:
    """Return the shipped recipes by dotted name, without importing torch."""
    # By file, not by import of the package: a learner would load torch.
    names = sorted(path.parent.name for path in (ROOT / "recipes").glob("*/recipe.py"))
    modules = [importlib.import_module(f"recipes.{name}.recipe") for name in names]
    found = [listed.recipe for module in modules for listed in recipes_in(module)]
    return {name: resolve(name) for name in found}


def knobs() -> str:
    """Return the tables of the shared knobs, each once, and those of the recipes."""
    shipped = recipes()
    titles = {cls.knobs_type: name for name, cls in shipped.items()}
    for kind_ in [*titles]:
        titles |= {base: base.__name__ for base in _bases(kind_) if base not in titles}
    shared = [base for base in titles if base.__name__ == titles[base]]
    shared.sort(key=lambda base: len(_bases(base)))
    parts = [_knobs_of(base, titles, _first_line(base)) for base in shared]
    parts += [_knobs_of(cls.knobs_type, titles, f"{cls.summary}.") for cls in shipped.values()]
    return "\n\n".join(parts)


def _knobs_of(cls: type[Knobs], titles: Mapping[type[Knobs], str], about: str) -> str:
    """Return a section with the rows that differ from those of a direct base."""
    parents = [_rows(base) for base in cls.__bases__ if issubclass(base, Knobs)]
    own = {
        key: row
        for key, row in _rows(cls).items()
        if {rows[key] for rows in parents if key in rows} != {row}
    }
    links = ", ".join(f"[{titles[base]}](#{_anchor(titles[base])})" for base in _bases(cls))
    parts = [f"### {titles[cls]}", about, f"Also those of {links}." if links else ""]
    return "\n\n".join(filter(None, (*parts, _table(own) if own else "")))


def _bases(cls: type[Knobs]) -> list[type[Knobs]]:
    return [base for base in cls.__mro__[1:] if issubclass(base, Knobs) and base is not Knobs]


def _first_line(cls: type[Knobs]) -> str:
    return (cls.__doc__ or "").partition("\n")[0]


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower())


_SECTIONS = ("model", "evaluation", "harness", "gateway", "serving", "external")
SECTIONS: Mapping[str, Callable[[], str]] = {
    "top": partial(table, ServeConfig),
    "reef": partial(table, RecipeBinding),
    "models": partial(table, ModelEndpoint),
    "agent": partial(table, AgentSection),
    **{name: partial(section, name) for name in _SECTIONS},
    "knobs": knobs,
}
