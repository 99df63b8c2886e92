"""Sampling parameters: the engine's own words, else the request and the nodes' defaults."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from reefcommon.events import Sampling

_TYPES = {name: field.annotation for name, field in Sampling.model_fields.items()}
_NAMES = frozenset(_TYPES) - {"stated_by"}
# Checks the given fields alone: a model and its dump would cost a tenth of an exchange.
_FIELDS: TypeAdapter[dict[str, Any]] = TypeAdapter(
    TypedDict("_Fields", _TYPES, total=False)  # type: ignore[operator]
)

_STATED = Sampling(stated_by="engine").model_dump()


def requested(body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the sampling parameters that a request states; None if it states none."""
    return {name: body[name] for name in _NAMES & body.keys() if body[name] is not None} or None


def effective(
    stated: object, asked: dict[str, Any] | None, defaults: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the parameters that the engine used, for the event; None if they cannot be known."""
    given = asked or {}
    if isinstance(stated, dict):
        given = {name: stated[name] for name in _NAMES & stated.keys() if stated[name] is not None}
        defaults = _STATED
    elif "logit_bias" in given:
        given = {**given, "logit_bias": bool(given["logit_bias"])}
    try:
        found = {**defaults, **_FIELDS.validate_python(given)}
    except ValidationError:
        return None
    found["top_k"] = max(found["top_k"], 0)  # vLLM writes -1 for all tokens
    return found
