"""A check that an answer is a chat: a dialect's answer is made after the record is durable."""

# An answer that cannot be translated is refused before it is recorded, as the node's fault.

from typing import Any

from services.gateway.domain.errors import UpstreamFailed, invalid_answer

_TEXT = (str, type(None))


def check_answer(body: dict[str, Any]) -> None:
    """Raise UpstreamFailed if an answer has no first choice with a message that can be read."""
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not _legible(choices[0], "message"):
        raise _no_chat()


def check_chunk(chunk: dict[str, Any]) -> None:
    """Raise UpstreamFailed if a chunk has a choice that cannot be read."""
    choices = chunk.get("choices") or []
    if not isinstance(choices, list) or not all(_legible(part, "delta") for part in choices):
        raise _no_chat()


def _no_chat() -> UpstreamFailed:
    return invalid_answer("sent an answer that is no chat")


def _legible(choice: object, name: str) -> bool:
    if not isinstance(choice, dict):
        return False
    said = choice.get(name, {} if name == "delta" else None)
    if said is None and name == "delta":
        return True
    if not isinstance(said, dict) or not isinstance(said.get("content"), (*_TEXT, list)):
        return False
    calls = said.get("tool_calls") or []
    return isinstance(calls, list) and all(map(_callable, calls))


def _callable(call: object) -> bool:
    if not isinstance(call, dict) or not isinstance(call.get("id"), _TEXT):
        return False
    function = call.get("function", {})
    return isinstance(function, dict) and all(
        isinstance(function.get(name), _TEXT) for name in ("name", "arguments")
    )


def first_choices(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the parts of a chunk for the first choice: a dialect has no others."""
    return [part for part in chunk.get("choices") or () if part.get("index") in (0, None)]


def place_of(call: dict[str, Any]) -> int:
    index = call.get("index")
    return index if isinstance(index, int) else 0


def count_of(usage: object, name: str) -> int:
    """Return a count of a usage; 0 if the node stated none."""
    count = usage.get(name) if isinstance(usage, dict) else None
    return count if type(count) is int and count >= 0 else 0
