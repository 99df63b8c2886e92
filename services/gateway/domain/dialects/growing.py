"""A chat's answer, whole or in chunks, as its translators read it, whoever wrote it."""

# Pieces of a stream are joined as in the record.

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from pydantic_core import from_json

from services.gateway.domain.deltas import joined
from services.gateway.domain.dialects.base import Json, Turn, objects, read
from services.gateway.domain.dialects.legible import first_choices, place_of

Kind = Literal["text", "thought", "call"]


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool; `number` is its place in the answer."""

    number: int
    id: str
    name: str
    arguments: str

    @property
    def whole(self) -> bool:
        """Return whether the arguments are JSON to their end."""
        return read(self.arguments) is not None

    @property
    def cut(self) -> bool:
        """Return whether the arguments end in the middle of their JSON."""
        if self.whole or not self.arguments.startswith("{"):
            return False
        with suppress(ValueError):
            return from_json(self.arguments, allow_partial="trailing-strings") is not None
        return False


class Growing:
    """The chunks of a stream so far."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._calls: list[Any] = []
        self._choice: Json = {}
        self.usage: object = None

    def take(self, chunk: Json) -> list[tuple[Kind, str, int]]:
        """Return a chunk's pieces in order: its texts, and the numbers of the calls that grew."""
        self.usage = chunk.get("usage") or self.usage
        found: list[tuple[Kind, str, int]] = []
        for choice in first_choices(chunk):
            if choice.get("finish_reason"):
                self._choice = choice
            delta = choice.get("delta") or {}
            text, thought = said(delta)
            if thought:
                found.append(("thought", thought, 0))
            if text:
                found.append(("text", text, 0))
            for piece in delta.get("tool_calls") or ():
                grown = joined(self._calls, piece)
                number = next(n for n, call in enumerate(self._calls) if call is grown)
                found.append(("call", "", number))
        return found

    def call(self, number: int) -> Call:
        """Return a call as far as it has come."""
        return _call(self._turn, number, self._calls[number])

    def calls(self) -> list[Call]:
        """Return the calls, in the record's order."""
        return calls_of(self._turn, {"tool_calls": self._calls})

    def reason(self) -> tuple[str, str | None]:
        """Return the reason of the end, and the sequence that stopped it."""
        return reason_of(self._choice, self.calls())


def said(part: Json) -> tuple[str, str]:
    """Return the text and the thoughts of a message or a delta."""
    text, thought = part.get("content"), part.get("reasoning_content") or part.get("reasoning")
    if isinstance(text, list):  # parts, as some providers send
        parts = objects(text)
        thought = thought or "".join(_texts(each.get("thinking")) for each in parts)
        text = _texts(parts)
    text = text or part.get("refusal")
    return text if isinstance(text, str) else "", thought if isinstance(thought, str) else ""


def _texts(parts: object) -> str:
    found = [part.get("text") for part in objects(parts)]
    return "".join(text for text in found if isinstance(text, str))


def calls_of(turn: Turn, message: Json) -> list[Call]:
    """Return the calls of a message, in the record's order.

    A client cannot make a call without a name: it is left out.
    """
    rows = [(n, call) for n, call in enumerate(message.get("tool_calls") or ())]
    rows.sort(key=lambda row: place_of(row[1]))
    calls = [_call(turn, number, call) for number, call in rows]
    return [call for call in calls if call.name]


def _call(turn: Turn, number: int, call: Json) -> Call:
    function = call.get("function") or {}
    # Some providers give no id, and a client answers a call by its id.
    call_id = call.get("id") or f"call_{turn.receipt}_{number}"
    return Call(number, call_id, function.get("name") or "", function.get("arguments") or "")


def reason_of(choice: Json, calls: list[Call]) -> tuple[str, str | None]:
    """Return length, content_filter, tool_calls or stop, and the sequence that stopped it."""
    # Some providers say `stop` after calls, or `tool_calls` without any; vLLM says it of calls that
    # its limit cut off, and a client would run them.
    reason, stops = choice.get("finish_reason"), map(choice.get, ("stop_reason", "matched_stop"))
    if reason in ("length", "content_filter", "abort"):  # vLLM and SGLang: cut off by the node
        return "length" if reason == "abort" else str(reason), None
    if any(call.cut for call in calls):
        return "length", None
    # vLLM and SGLang name the sequence that stopped it; a number there is a token id
    stopped = next((stop for stop in stops if isinstance(stop, str) and reason == "stop"), None)
    return ("tool_calls", None) if calls else ("stop", stopped)
