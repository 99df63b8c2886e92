"""JSON with halves of surrogate pairs: an emoji in two tokens, or cut off."""

import json
from contextlib import suppress
from typing import Any

import orjson

from reefcommon.surrogates import whole


def loads(data: bytes) -> Any:
    """Decode JSON. Raises ValueError, or RecursionError if it is nested too deeply."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        if b"\\ud" not in data.lower():
            raise
        return json.loads(data, parse_constant=_refuse)


def paired(raw: bytes) -> bytes:
    """Return a client's JSON with U+FFFD for half a pair; a body that is no JSON as it is."""
    # An agent that has cut an emoji in two sends the half with each later request.
    if b"\\ud" not in raw and b"\\uD" not in raw:
        return raw
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError:
        with suppress(ValueError, TypeError, RecursionError):
            return orjson.dumps(whole(json.loads(raw, parse_constant=_refuse)))
    return raw


def dumps(value: Any) -> bytes:
    """Encode JSON; a half pair is escaped, as it came.

    Raises ValueError, TypeError or RecursionError.
    """
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
