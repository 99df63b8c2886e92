"""OpenAI chat messages in the form that chat templates take."""

import contextlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from services.engine.domain.errors import InvalidRequestError

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


def template_messages(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Text parts joined, `developer` as `system`, call arguments as objects. Raises `InvalidRequestError`."""
    if not messages:
        raise InvalidRequestError("messages", "messages must hold at least one message")
    return [_message(message, f"messages[{i}]") for i, message in enumerate(messages)]


def checked_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    """Each tool must be a named function. Raises `InvalidRequestError`."""
    for i, tool in enumerate(tools or ()):
        function = tool.get("function")
        if (
            tool.get("type") != "function"
            or not isinstance(function, dict)
            or not isinstance(function.get("name"), str)
        ):
            raise InvalidRequestError(
                f"tools[{i}]",
                f"tools[{i}] must be of type 'function' and have a function with a name",
            )
    return list(tools or ())


def characters(value: Any) -> int:
    """Characters in a JSON value, each entry counted as at least one."""
    count, rest = 0, [value]
    while rest:  # a loop, since a deep value would end a recursion
        one = rest.pop()
        if isinstance(one, Mapping):
            rest += [*one.keys(), *one.values()]
        elif isinstance(one, list):
            rest += one
        count += len(one) if isinstance(one, str) else 1
    return count


def _message(message: Mapping[str, Any], where: str) -> dict[str, Any]:
    role = message.get("role")
    if role not in ROLES:
        raise InvalidRequestError(
            f"{where}.role", f"{where}.role must be one of {', '.join(ROLES)}, got {role!r}"
        )
    calls = message.get("tool_calls")
    plain: dict[str, Any] = {
        "role": ROLES[role],
        "content": _text(message.get("content"), f"{where}.content"),
    }
    if calls:
        plain["tool_calls"] = [
            _call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)
        ]
    elif message.get("content") is None:
        raise InvalidRequestError(
            f"{where}.content", f"{where}.content must not be null without tool_calls"
        )
    for extra in ("name", "tool_call_id"):
        if extra in message:
            plain[extra] = message[extra]
    return plain


def _text(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise InvalidRequestError(where, f"{where} must be a string or a list of parts")
    return "".join(_part(part, f"{where}[{i}]") for i, part in enumerate(content))


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") not in {"text", "refusal"}:
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        raise InvalidRequestError(where, f"{where}: this model takes text parts only, got {kind!r}")
    text = part.get(part["type"])
    if not isinstance(text, str):
        raise InvalidRequestError(where, f"{where}.text must be a string")
    return text


def _call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise InvalidRequestError(where, f"{where} must be a function call with a name")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        # A call that max_tokens cut off is no JSON. It is history: templates print it as it is.
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    return {
        "id": call.get("id"),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }
