"""The sampling parameters of an exchange.

The engine states them; else they follow from the request and the nodes' defaults.
"""

from typing import Any

from pydantic import ValidationError

from reefcommon.events import Sampling

_REQUESTED = frozenset(Sampling.model_fields) - {"stated_by"}


def requested(body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the sampling parameters that a request states; None if it states none."""
    found = {name: body[name] for name in _REQUESTED & body.keys() if body[name] is not None}
    return found or None


def effective(
    stated: object, asked: dict[str, Any] | None, defaults: Sampling
) -> dict[str, Any] | None:
    """Return the parameters that the engine used, for the event; None if they cannot be known."""
    if isinstance(stated, dict):
        known = {name: value for name, value in stated.items() if value is not None}
        return _checked({**known, "stated_by": "engine"})
    given = defaults.model_dump() | (asked or {})
    return _checked({**given, "logit_bias": bool(given["logit_bias"]), "stated_by": "request"})


def _checked(fields: dict[str, Any]) -> dict[str, Any] | None:
    try:
        sampling = Sampling.model_validate(fields)
    except ValidationError:
        return None
    # vLLM writes -1 for "all tokens"
    return sampling.model_dump() | {"top_k": max(0, sampling.top_k)}
