"""The tables of docs/serve-yaml.md: every key of a `serve.yaml` and every knob of the recipes that ship, read from their models."""

import importlib
import json
import types
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from reefcli.commands.recipes import recipes_in
from reefcommon.config import RecipeBinding, ServeConfig
from reefcommon.recipe import Recipe, resolve

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "serve-yaml.md"
WORDS: Mapping[object, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true, false",
    Path: "path",
    type(None): "",
    Any: "any",
}


def table(model: type[BaseModel]) -> str:
    """A Markdown table of one model: key, type, default, meaning."""
    rows = ["| key | type | default | meaning |", "|---|---|---|---|"]
    rows += [
        f"| `{key}` | {kind(field)} | {default(field)} | {field.description} |"
        for key, field in model.model_fields.items()
    ]
    return "\n".join(rows)


def kind(field: FieldInfo) -> str:
    """What may be written: the type, and its bounds."""
    return ", ".join([_words(field.annotation), *filter(None, map(_bound, field.metadata))])


def _bound(constraint: object) -> str:
    match constraint:
        case Ge(ge=value):
            return f">= {value}"
        case Gt(gt=value):
            return f"> {value}"
        case Le(le=value):
            return f"<= {value}"
        case Lt(lt=value):
            return f"< {value}"
    return ""


def _words(annotation: Any) -> str:
    inner = get_args(annotation)
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in inner)
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(filter(None, map(_words, inner)))
    if get_origin(annotation) is tuple:
        return f"list of {_words(inner[0])}" if inner[0] is not Any else "list"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    return WORDS[annotation]


def default(field: FieldInfo) -> str:
    """The default as YAML has it; empty where a key is absent, or is a section of its own."""
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    if value is None or isinstance(value, BaseModel):
        return ""
    return (
        f"`{json.dumps(value, default=str) if isinstance(value, (bool, tuple)) else value}`"
        if value != ""
        else ""
    )


def section(name: str) -> str:
    """The table of a section of the file."""
    return table(type(ServeConfig.model_fields[name].default))


def recipes() -> dict[str, type[Recipe]]:
    """The recipes that ship, by what `recipe:` names them. Importing them needs no torch."""
    found = [
        importlib.import_module(f"recipes.{path.parent.name}.recipe")
        for path in sorted((ROOT / "recipes").glob("*/recipe.py"))
    ]
    return {
        listed.recipe: resolve(listed.recipe) for module in found for listed in recipes_in(module)
    }


def knobs() -> str:
    """A table for each recipe, under a heading."""
    return "\n\n".join(
        f"### {name}\n\n{cls.summary}.\n\n{table(cls.knobs_type)}"
        for name, cls in recipes().items()
    )


SECTIONS: Mapping[str, Callable[[], str]] = {
    "top": partial(table, ServeConfig),
    "reef": partial(table, RecipeBinding),
    **{
        name: partial(section, name)
        for name in ("model", "evaluation", "gateway", "serving", "external")
    },
    "knobs": knobs,
}
