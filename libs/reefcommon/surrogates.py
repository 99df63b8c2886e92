"""Halves of surrogate pairs, as an answer has them that was cut inside of an emoji."""

from typing import Any


def whole(value: Any) -> Any:
    """Join the halves in a JSON value; a single half becomes U+FFFD, as no event holds one."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, dict):
        return {whole(key): whole(item) for key, item in value.items()}
    return value
