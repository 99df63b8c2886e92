"""The events of a stream of Messages."""

from services.gateway.domain.deltas import merge
from services.gateway.domain.dialects.base import Json, Translator, Turn
from services.gateway.domain.dialects.legible import calls_of, first_choices, text_of
from services.gateway.domain.dialects.messages import (
    Messages,
    head_of,
    stop_of,
    text_block,
    usage_of,
    use_block,
)


def _json_delta(piece: str) -> Json:
    return {"type": "input_json_delta", "partial_json": piece}


class MessageEvents(Translator):
    """Blocks come after each other: a text, then each tool. Pieces are joined as in the record."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn)
        self._index = -1
        self._open = ""  # the kind of the open block
        self._message: Json = {}
        # the call that is sent as it comes: its id, and how much of its arguments was sent
        self._begun, self._sent = "", 0
        self._late: list[str] = []
        self._choice: Json = {}
        self._usage: object = None

    def begin(self) -> list[Json]:
        """Return the start of the message."""
        nothing: Json = {"content": [], "stop_reason": None, "stop_sequence": None}
        message = {**head_of(self.turn), **nothing, "usage": usage_of({})}
        return [{"type": "message_start", "message": message}]

    def chunk(self, chunk: Json) -> list[Json]:
        """Return the events of a chunk."""
        self._usage = chunk.get("usage") or self._usage
        found: list[Json] = []
        for choice in first_choices(chunk):
            if choice.get("finish_reason"):
                self._choice = choice
            delta = choice.get("delta") or {}
            if text := text_of(delta.get("content")):
                found += self._text(text)
            if calls := delta.get("tool_calls"):
                merge(self._message, "tool_calls", calls)
                found += self._first()
        return found

    def _text(self, text: str) -> list[Json]:
        if self._begun:  # a block cannot be opened again: text within a call comes after it
            self._late.append(text)
            return []
        found = [] if self._open == "text" else self._start("text", text_block(""))
        return [*found, self._delta({"type": "text_delta", "text": text})]

    def _first(self) -> list[Json]:
        # Calls may come mixed, and blocks may not: the first is sent as it comes, others whole.
        first, found = self._message["tool_calls"][0], []
        function = first.get("function") or {}
        if not self._begun:
            if not first.get("id") or not function.get("name"):
                return []
            self._begun = first["id"]
            found = self._start("call", use_block(first["id"], function["name"], {}))
        text = function.get("arguments") or ""
        piece, self._sent = text[self._sent :], len(text)
        return [*found, self._delta(_json_delta(piece))] if piece else found

    def _rest(self) -> list[Json]:
        found: list[Json] = []
        for call in calls_of(self._message, self.turn.receipt):
            self.turn.spelling.keep(call["id"], call["arguments"])
            if call["id"] != self._begun:
                found += self._start("call", use_block(call["id"], call["name"], {}))
                found.append(self._delta(_json_delta(call["arguments"])))
        if self._late:
            found += self._start("text", text_block(""))
            found.append(self._delta({"type": "text_delta", "text": "".join(self._late)}))
        return found

    def _start(self, kind: str, block: Json) -> list[Json]:
        found = self._close()
        self._open, self._index = kind, self._index + 1
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*found, start]

    def _close(self) -> list[Json]:
        if not self._open:
            return []
        self._open = ""
        return [{"type": "content_block_stop", "index": self._index}]

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def end(self) -> list[Json]:
        """Return the end of the message; `message_stop` holds the receipt."""
        reason, sequence = stop_of(self._choice)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        last: Json = {"type": "message_stop"}
        if self.turn.receipt:
            last["reef"] = {"agent_record_id": self.turn.receipt}
        body = [*self._rest(), *self._close()]
        usage = usage_of(self._usage)
        return [*body, {"type": "message_delta", "delta": delta, "usage": usage}, last]

    def failure(self, error: Json) -> list[Json]:
        """Return the event of an error."""
        status = error.get("status")
        return [Messages().error(status if isinstance(status, int) else 500, error)]
