"""Sampling parameters: the engine's own words, else the request and the nodes' defaults."""

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from reefcommon.events import Sampling

_TYPES = {name: field.annotation for name, field in Sampling.model_fields.items()}
_NAMES = frozenset(_TYPES) - {"stated_by", "constrained"}
# Fields of vLLM and SGLang by which not the policy alone chooses a token.
_CHOOSERS = """
structured_outputs guided_json guided_regex guided_choice guided_grammar regex ebnf json_schema
bad_words logits_processors custom_logit_processor use_beam_search
"""
_CONSTRAINTS = frozenset(_CHOOSERS.split())
# Checks the given fields alone: a model and its dump would cost a tenth of an exchange.
_FIELDS: TypeAdapter[dict[str, Any]] = TypeAdapter(
    TypedDict("_Fields", _TYPES, total=False)  # type: ignore[operator]
)

_STATED = Sampling(stated_by="engine").model_dump()


def requested(body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the sampling parameters that a request states; None if it states none."""
    found = {name: body[name] for name in _NAMES & body.keys() if body[name] is not None}
    return found | ({"constrained": True} if _constrained(body) else {}) or None


def _constrained(body: dict[str, Any]) -> bool:
    form = body.get("response_format")
    shaped = isinstance(form, dict) and form.get("type") != "text"
    forced = body.get("tool_choice") not in (None, "auto", "none")
    return shaped or forced or any(body[name] for name in _CONSTRAINTS & body.keys())


def effective(
    stated: object, asked: dict[str, Any] | None, defaults: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the parameters that the engine used, for the event; None if they cannot be known."""
    given = asked or {}
    if isinstance(stated, dict):
        constrained = {"constrained": True} if "constrained" in given else {}
        given = {name: stated[name] for name in _NAMES & stated.keys() if stated[name] is not None}
        given |= constrained
        defaults = _STATED
    elif "logit_bias" in given:
        given = {**given, "logit_bias": bool(given["logit_bias"])}
    try:
        found = {**defaults, **_FIELDS.validate_python(given)}
    except ValidationError:
        return None
    found["top_k"] = max(found["top_k"], 0)  # vLLM writes -1 for all tokens
    return found
