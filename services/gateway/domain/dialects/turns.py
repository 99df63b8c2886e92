"""Messages of a chat that a client sends in other parts, or in another order."""

from typing import Any

from services.gateway.domain.dialects.base import Json
from services.gateway.domain.dialects.thoughts import FIELD


def answered(messages: list[Json]) -> list[Json]:
    """Return messages of a chat, in which the results follow their calls at once."""
    # An agent may have said something in between.
    found: list[Json] = []
    waiting: list[Json] = []
    open_ids: set[str | None] = set()
    for message in messages:
        if message["role"] == "tool":
            open_ids.discard(message["tool_call_id"])
        elif open_ids and not message.get("tool_calls"):
            waiting.append(message)
            continue
        else:
            found += waiting
            waiting, open_ids = [], {call.get("id") for call in message.get("tool_calls") or ()}
        found.append(message)
        if not open_ids:
            found += waiting
            waiting = []
    return found + waiting


class _Texts(dict[str, Any]):
    """A user's message that becomes one text when all of it is there."""


def append(messages: list[Json], message: Json) -> None:
    """Add a message, or its content to the last: several may be one in a chat."""
    last = messages[-1] if messages else {}
    if message["role"] == last.get("role") == "assistant":  # an answer in parts is one answer
        for name in ("content", FIELD):
            go_on(last, name, message.get(name) or "")
        if calls := message.get("tool_calls"):
            last.setdefault("tool_calls", []).extend(calls)
            last["content"] = last["content"] or None
    elif message["role"] != "system" or not messages:
        messages.append(message)
    # Many templates take a system text at the beginning alone: a later text is the user's.
    elif last["role"] != "user":
        messages.append({"role": "user", "content": message["content"]})
    else:
        if isinstance(last["content"], str):
            first = {"type": "text", "text": last["content"]}
            last = messages[-1] = _Texts(role="user", content=[first])
        last["content"].append({"type": "text", "text": message["content"]})


def go_on(answer: Json, name: str, text: str) -> None:
    """Add to a text of an answer that comes in pieces; `joined` ends it."""
    # The pieces are joined at the end: a client may send thousands.
    if isinstance(answer.get(name), list):
        answer[name].append(text)
    elif text:
        answer[name] = [answer.get(name) or "", text]


def joined(message: Json) -> Json:
    """Return a message whose pieces are joined."""
    if isinstance(message, _Texts):
        return {"role": "user", "content": "\n\n".join(part["text"] for part in message["content"])}
    for name in ("content", FIELD) if message["role"] == "assistant" else ():
        if isinstance(pieces := message.get(name), list):
            message[name] = "".join(pieces)
    return message
