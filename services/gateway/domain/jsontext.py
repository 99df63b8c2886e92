"""JSON with halves of surrogate pairs: an emoji in two tokens, or cut off."""

import json
from typing import Any

import orjson


def loads(data: bytes) -> Any:
    """Decode JSON. Raises ValueError, or RecursionError if it is nested too deeply."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        if b"\\ud" not in data.lower():
            raise
        return json.loads(data, parse_constant=_refuse)


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
