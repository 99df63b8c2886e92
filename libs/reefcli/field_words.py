"""Type, bounds and default of a pydantic field in words: for `reef recipes` and the pages."""

import json
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

WORDS: Mapping[object, str] = {
    str: "text", int: "integer", float: "number", bool: "true, false", Path: "path",
    type(None): "", Any: "any",
}  # fmt: skip


def kind(field: FieldInfo) -> str:
    return ", ".join([_words(field.annotation), *filter(None, map(_bound, field.metadata))])


def _bound(constraint: object) -> str:
    signs = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<"}
    bounds = {sign: getattr(constraint, name, None) for name, sign in signs.items()}
    return ", ".join(f"{sign} {value}" for sign, value in bounds.items() if value is not None)


def _words(annotation: Any) -> str:
    inner = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _words(inner[0])
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in inner)
    if get_origin(annotation) in (Union, types.UnionType):
        return " or ".join(filter(None, map(_words, inner)))
    # Lists are tuples in the models, so that they cannot be changed.
    if get_origin(annotation) is tuple:
        return f"list of {_words(inner[0])}" if inner[0] is not Any else "list"
    if get_origin(annotation) is dict:
        return f"mapping of name to {_words(inner[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "mapping"
    # A recipe of one's own may have any type.
    return WORDS.get(annotation, getattr(annotation, "__name__", str(annotation)))


def default(field: FieldInfo) -> str:
    """Return the default as YAML has it; empty for None and for a section."""
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is PydanticUndefined:
        return "required"
    # A section has a table of its own.
    if value is None or isinstance(value, BaseModel):
        return ""
    shown = json.dumps(value, default=str) if isinstance(value, (bool, tuple)) else value
    return f"`{shown}`" if value != "" else ""
