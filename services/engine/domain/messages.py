"""OpenAI chat messages in the form that chat templates take."""

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from services.engine.domain.errors import wrong

_SAME = {role: role for role in ("system", "user", "assistant", "tool")}
ROLES = _SAME | {"developer": "system"}
MAX_ENTRIES = 10_000


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Join text parts, parse call arguments, and map `developer` to `system`.

    Raises `InvalidRequestError`.
    """
    if not messages:
        raise wrong("messages", "must hold at least one message")
    # A body of many small parts costs seconds, although each is short.
    lists = (message.get(key) for message in messages for key in ("content", "tool_calls"))
    parts = sum(len(parts) for parts in lists if isinstance(parts, list))
    if parts > MAX_ENTRIES:
        raise wrong("messages", f"take at most {MAX_ENTRIES} parts and tool calls, got {parts}")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def checked_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    """The tools, each a named function. Raises `InvalidRequestError`."""
    for i, tool in enumerate(tools or ()):
        if tool.get("type") != "function" or not _named(tool.get("function")):
            raise wrong(f"tools[{i}]", "must be of type 'function' and have a named function")
    return list(tools or ())


def count_characters(value: Any, most: int) -> int:
    """Count the characters in a JSON value, and each entry as at least 1. Stops beyond `most`."""
    count, rest = 0, [value]
    while rest and count <= most:  # a loop, since a deep value would end a recursion
        one = rest.pop()
        if isinstance(one, dict):
            rest += [*one, *one.values()]
        elif isinstance(one, list):
            rest += one
        count += len(one) if isinstance(one, str) else 1
    return count


def _named(function: Any) -> bool:
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _message(message: Mapping[str, Any], field: str) -> dict[str, Any]:
    role, calls = message.get("role"), message.get("tool_calls")
    if not isinstance(role, str) or role not in ROLES:
        raise wrong(f"{field}.role", f"must be one of {', '.join(ROLES)}, got {role!r}")
    plain: dict[str, Any] = {"role": ROLES[role]}
    plain["content"] = _text(message.get("content"), f"{field}.content")
    if calls:
        field = f"{field}.tool_calls"
        if not isinstance(calls, list):
            raise wrong(field, "must be a list")
        plain["tool_calls"] = [_call(call, f"{field}[{i}]") for i, call in enumerate(calls)]
    elif message.get("content") is None:
        raise wrong(f"{field}.content", "must not be null without tool_calls")
    if isinstance(thoughts := message.get("reasoning_content"), str):
        plain["reasoning_content"] = thoughts
    return plain | {key: message[key] for key in ("name", "tool_call_id") if key in message}


def _text(content: Any, field: str) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise wrong(field, "must be a string or a list of parts")
    return "".join(_part(part, f"{field}[{i}]") for i, part in enumerate(content))


def _part(part: Any, field: str) -> str:
    # A tuple: a type that is a list cannot be looked up in a set.
    if not isinstance(part, dict) or part.get("type") not in ("text", "refusal"):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        raise wrong(field, f"must be a text part for this model, got {kind!r}")
    text = part.get(part["type"])
    if not isinstance(text, str):
        raise wrong(field, "must have a string as its text")
    return text


def _call(call: Any, field: str) -> dict[str, Any]:
    function: Any = call.get("function") if isinstance(call, dict) else None
    if not _named(function):
        raise wrong(field, "must be a function call with a name")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        # A call that max_tokens cut off is no JSON, nor is half a surrogate pair a text. It is
        # history: templates print it as it is.
        with contextlib.suppress(ValueError):
            arguments = from_json(arguments, allow_inf_nan=False)
    function = {"name": function["name"], "arguments": arguments}
    return {"id": call.get("id"), "type": "function", "function": function}
