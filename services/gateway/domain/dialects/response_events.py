"""The events of a stream of Responses."""

from services.gateway.domain.dialects.base import Json, Translator, Turn
from services.gateway.domain.dialects.growing import Growing
from services.gateway.domain.dialects.response_items import (
    call_item,
    cut_of,
    message_item,
    reasoning_item,
    response,
)

_PARTS: dict[str, Json] = {
    "text": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    "thought": {"type": "reasoning_text", "text": ""},
}
_CALL, _CUSTOM = "response.function_call_arguments", "response.custom_tool_call_input"


class ResponseEvents(Translator):
    """Items are written as the model writes them, and all end with the answer."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn)
        self._number = 0
        self._growing = Growing(turn)
        # the place in the output of "text", "thought" and each call's number, and their texts
        self._places: dict[str | int, int] = {}
        self._ids: dict[str | int, str] = {}
        self._texts: dict[str | int, list[str]] = {}
        self._sent: dict[int, int] = {}

    def _numbered(self, *events: Json) -> list[Json]:
        found = []
        for each in events:
            found.append({**each, "sequence_number": self._number})
            self._number += 1
        return found

    def begin(self) -> list[Json]:
        """Return the events of a response that has begun."""
        begun = response(self.turn, [], None, status="in_progress")
        kinds = ("response.created", "response.in_progress")
        return self._numbered(*({"type": kind, "response": begun} for kind in kinds))

    def chunk(self, chunk: Json) -> list[Json]:
        """Return the events of a chunk."""
        found: list[Json] = []
        for kind, text, number in self._growing.take(chunk):
            found += self._called(number) if kind == "call" else self._written(kind, text)
        return self._numbered(*found)

    def _written(self, kind: str, text: str) -> list[Json]:
        found = self._begins(kind)
        self._texts[kind].append(text)
        delta = {"type": f"response.{_PARTS[kind]['type']}.delta", **self._place(kind)}
        extra: Json = {"logprobs": []} if kind == "text" else {}
        return [*found, {**delta, "delta": text, **extra}] if text else found

    def _called(self, number: int) -> list[Json]:
        call = self._growing.call(number)
        if not call.name:
            return []
        found = self._begins(number)
        if self._ids[number].startswith("ctc_"):
            return found  # its input is a part of a JSON text: it comes whole
        piece = call.arguments[self._sent.get(number, 0) :]
        self._sent[number] = len(call.arguments)
        delta = {"type": f"{_CALL}.delta", **self._place(number), "delta": piece}
        return [*found, delta] if piece else found

    def _begins(self, key: str | int) -> list[Json]:
        if key in self._places:
            return []
        at = self._places[key] = len(self._places)
        self._texts[key] = []
        item = {**self._item(key, ""), "status": "in_progress"}
        self._ids[key] = item["id"]
        if isinstance(key, int):
            item["input" if "input" in item else "arguments"] = ""
        else:
            item["content"] = []
        found: list[Json] = [
            {"type": "response.output_item.added", "output_index": at, "item": item}
        ]
        if not isinstance(key, int):
            part = {"type": "response.content_part.added", **self._place(key)}
            found.append({**part, "part": _PARTS[key]})
        return found

    def _item(self, key: str | int, cut: str) -> Json:
        if isinstance(key, int):
            return call_item(self.turn, self._growing.call(key), cut=cut)
        make = message_item if key == "text" else reasoning_item
        return make(self.turn, "".join(self._texts[key]), cut=cut)

    def _place(self, key: str | int) -> Json:
        place = {"output_index": self._places[key], "item_id": self._ids[key]}
        return place if isinstance(key, int) else {**place, "content_index": 0}

    def end(self) -> list[Json]:
        """Return the events of the items' ends, then `response.completed`."""
        cut = cut_of(self._growing.reason()[0])
        found: list[Json] = []
        if set(self._places) <= {"thought"}:
            found += self._begins("text")
        output = []
        for key in self._places:
            item = self._item(key, cut)
            output.append(item)
            found += self._ends(key, item)
        kind = "response.incomplete" if cut else "response.completed"
        whole = response(self.turn, output, self._growing.usage, cut=cut)
        return self._numbered(*found, {"type": kind, "response": whole})

    def _ends(self, key: str | int, item: Json) -> list[Json]:
        place = self._place(key)
        last = {"type": "response.output_item.done", "output_index": self._places[key]}
        if isinstance(key, int) and "input" in item:
            delta = {"type": f"{_CUSTOM}.delta", **place, "delta": item["input"]}
            done = {"type": f"{_CUSTOM}.done", **place, "input": item["input"]}
            return [delta, done, {**last, "item": item}]
        if isinstance(key, int):
            done = {"arguments": item["arguments"], "name": item["name"]}
            return [{"type": f"{_CALL}.done", **place, **done}, {**last, "item": item}]
        part = item["content"][0]
        extra: Json = {"logprobs": []} if key == "text" else {}
        return [
            {"type": f"response.{part['type']}.done", **place, "text": part["text"], **extra},
            {"type": "response.content_part.done", **place, "part": part},
            {**last, "item": item},
        ]

    def failure(self, error: Json) -> list[Json]:
        """Return the event of an error."""
        said = {"code": error.get("code"), "message": error.get("message", ""), "param": None}
        kind = {"type": error.get("type") or "server_error"}
        # Codex reads the response that failed alone. The vendor's own client reads the fields of
        # the last event, others those of its error.
        whole = response(self.turn, [], None, status="failed")
        code = "rate_limit_exceeded" if error.get("status") == 429 else "server_error"
        whole["error"] = {"code": code, "message": said["message"]}
        failed = {"type": "response.failed", "response": whole}
        return self._numbered(failed, {"type": "error", **said, "error": {**kind, **said}})
