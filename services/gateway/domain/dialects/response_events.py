"""The events of a stream of Responses."""

from services.gateway.domain.deltas import merge
from services.gateway.domain.dialects.base import Json, Translator, Turn
from services.gateway.domain.dialects.legible import calls_of, first_choices, text_of
from services.gateway.domain.dialects.response_items import (
    call_items,
    cut_of,
    message_item,
    response,
)


class ResponseEvents(Translator):
    """Items come after each other: the text as it is written, then each call as it is whole."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn)
        self._number = 0
        self._texts: list[str] = []
        self._message: Json = {}
        self._usage: object = None
        self._cut = ""

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
        self._usage = chunk.get("usage") or self._usage
        found: list[Json] = []
        for choice in first_choices(chunk):
            self._cut = self._cut or cut_of(choice)
            delta = choice.get("delta") or {}
            if text := text_of(delta.get("content")):
                found += self._piece(text)
            if calls := delta.get("tool_calls"):
                merge(self._message, "tool_calls", calls)
        return found

    def _place(self) -> Json:
        return {"item_id": f"msg_{self.turn.receipt}", "output_index": 0, "content_index": 0}

    def _piece(self, text: str) -> list[Json]:
        found = [] if self._texts else self._item_begins()
        self._texts.append(text)
        delta = {
            "type": "response.output_text.delta",
            **self._place(),
            "delta": text,
            "logprobs": [],
        }
        return self._numbered(*found, delta)

    def end(self) -> list[Json]:
        """Return the events of the items' ends, then `response.completed`."""
        output: list[Json] = []
        found: list[Json] = []
        calls = calls_of(self._message, self.turn.receipt)
        if self._texts or not calls:
            if not self._texts:
                found += self._item_begins()
            text, place = "".join(self._texts), self._place()
            output.append(message_item(self.turn, text, cut=self._cut))
            part = output[0]["content"][0]
            done = {"type": "response.output_text.done", **place, "text": text, "logprobs": []}
            found += [done, {"type": "response.content_part.done", **place, "part": part}]
            found.append(_done(0, output[0]))
        for item in call_items(self.turn, calls):
            found += _call_events(len(output), item)
            output.append(item)
        kind = "response.incomplete" if self._cut else "response.completed"
        whole = response(self.turn, output, self._usage, cut=self._cut)
        return self._numbered(*found, {"type": kind, "response": whole})

    def _item_begins(self) -> list[Json]:
        item = {**message_item(self.turn, ""), "status": "in_progress", "content": []}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        added = {"type": "response.output_item.added", "output_index": 0, "item": item}
        return [added, {"type": "response.content_part.added", **self._place(), "part": part}]

    def failure(self, error: Json) -> list[Json]:
        """Return the event of an error."""
        # The vendor's own client reads the fields of the event, others those of its error.
        said = {"code": error.get("code"), "message": error.get("message", ""), "param": None}
        kind = {"type": error.get("type") or "server_error"}
        return self._numbered({"type": "error", **said, "error": {**kind, **said}})


def _done(index: int, item: Json) -> Json:
    return {"type": "response.output_item.done", "output_index": index, "item": item}


def _call_events(index: int, item: Json) -> list[Json]:
    begun = {**item, "arguments": "", "status": "in_progress"}
    place, arguments = {"item_id": item["id"], "output_index": index}, item["arguments"]
    kind = "response.function_call_arguments"
    return [
        {"type": "response.output_item.added", "output_index": index, "item": begun},
        {"type": f"{kind}.delta", **place, "delta": arguments},
        {"type": f"{kind}.done", **place, "arguments": arguments, "name": item["name"]},
        _done(index, item),
    ]
