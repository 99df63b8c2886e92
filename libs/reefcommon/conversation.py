"""The canonical form of a chat message, by which two messages are the same.

It ignores cache marks, ids, names, reasoning, outer white space, and whether text is a string or
parts. An unknown form counts by its content.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Json = Mapping[str, Any]
Identity = tuple[str, str, tuple[tuple[str, str], ...]]
"""(role, text, ((tool name, arguments), ...))."""

_REASONING = frozenset({"thinking", "redacted_thinking", "reasoning"})
_NOT_CONTENT = frozenset({"cache_control", "id", "index", "annotations"})


def identity(message: Json) -> Identity:
    """Return the canonical form of a message. Never raises."""
    content, tool_calls = message.get("content"), message.get("tool_calls")
    role = role_of(message)
    if isinstance(content, str) and not tool_calls:  # nearly all messages
        return role, content.strip(), ()
    calls = [_call(call) for call in mappings(tool_calls)]
    calls += [_call(part) for part in mappings(content) if part.get("type") == "tool_use"]
    return role, flat_text(content).strip(), tuple(calls)


def role_of(message: Json) -> str:
    """Return the role; `developer` is the newer name of `system`."""
    role = message.get("role")
    return "system" if role == "developer" else str(role)


def opening(messages: Iterable[Json]) -> tuple[str, str]:
    """Return (system text, text of the first user message), which all turns share."""
    system: list[str] = []
    for message in messages:
        role = role_of(message)
        if role == "user":
            return "\n".join(system), identity(message)[1]
        if role == "system":
            system.append(identity(message)[1])
    return "\n".join(system), ""


def flat_text(content: object) -> str:
    """Return the text of a string or of parts. A part without text counts by digest."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        return "" if content is None else _digest(content)
    texts = (_part_text(part) for part in content)
    return "\n".join(text for text in texts if text is not None)


def mappings(value: object) -> Iterable[Json]:
    """Return the items of a list that are objects."""
    if not isinstance(value, list | tuple):
        return ()
    return (item for item in value if isinstance(item, Mapping))


def _part_text(part: object) -> str | None:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        return _digest(part)
    kind = part.get("type")
    # A client may send a list here, which no set can hold.
    if isinstance(kind, str) and (kind == "tool_use" or kind in _REASONING):
        return None
    if isinstance(text := part.get("text"), str):
        return text
    if "content" in part:
        return flat_text(part["content"])
    return _digest(part)


def _call(call: Json) -> tuple[str, str]:
    # {"type": "function", "function": {...}}, the same with "custom", or a flat tool_use
    inner = call.get("function") or call.get(str(call.get("type")))
    inner = inner if isinstance(inner, Mapping) else call
    if not isinstance(name := inner.get("name"), str):
        return "", _digest(call)
    return name, _arguments(inner.get("arguments", inner.get("input")))


def _arguments(value: object) -> str:
    if isinstance(value, str):
        try:
            value = json.loads(value or "{}")
        except (ValueError, RecursionError):
            return str(value)
    # The standard library keeps integers of any size, and half a surrogate pair of a cut answer.
    return json.dumps(value or {}, sort_keys=True)


def _digest(value: object) -> str:
    if isinstance(value, Mapping):
        value = {k: v for k, v in value.items() if k not in _NOT_CONTENT and v is not None}
    spelled = json.dumps(value, sort_keys=True).encode()
    return hashlib.blake2b(spelled, digest_size=16).hexdigest()
