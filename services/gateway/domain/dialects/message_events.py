"""The events of a stream of Messages."""

from services.gateway.domain.dialects.base import Json, Translator, Turn
from services.gateway.domain.dialects.messages import (
    Messages,
    head_of,
    stop_of,
    text_block,
    usage_of,
    use_block,
)


def _empty_use(call: Json) -> Json:
    return use_block(call["id"], call["name"], {})


def _json_delta(piece: str) -> Json:
    return {"type": "input_json_delta", "partial_json": piece}


class MessageEvents(Translator):
    """Blocks come after each other: a text, then each tool."""

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn)
        self._index = -1
        # the open block: None, "text", or the index of a call
        self._open: str | int | None = None
        self._calls: dict[int, Json] = {}
        self._choice: Json = {}
        self._usage: Json = {}

    def begin(self) -> list[Json]:
        """Return the start of the message."""
        nothing: Json = {"content": [], "stop_reason": None, "stop_sequence": None}
        message = {**head_of(self.turn), **nothing, "usage": usage_of({})}
        return [{"type": "message_start", "message": message}]

    def chunk(self, chunk: Json) -> list[Json]:
        """Return the events of a chunk."""
        self._usage = chunk.get("usage") or self._usage
        found: list[Json] = []
        for choice in chunk.get("choices") or ():
            if choice.get("finish_reason"):
                self._choice = choice
            delta = choice.get("delta") or {}
            if delta.get("content"):
                found += self._switch("text", text_block(""))
                found.append(self._delta({"type": "text_delta", "text": delta["content"]}))
            for call in delta.get("tool_calls") or ():
                found += self._call(call)
        return found

    def _call(self, call: Json) -> list[Json]:
        index, function = call.get("index", 0), call.get("function") or {}
        known = self._calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        known["id"] = call.get("id") or known["id"]
        known["name"] += function.get("name") or ""
        piece = function.get("arguments") or ""
        known["arguments"] += piece
        # Calls may come mixed, and blocks may not: the first is sent as it comes, others whole.
        if index != min(self._calls):
            return []
        found = self._switch(index, _empty_use(known))
        return [*found, self._delta(_json_delta(piece))] if piece else found

    def _others(self) -> list[Json]:
        found: list[Json] = []
        for index, call in sorted(self._calls.items())[1:]:
            found += self._switch(index, _empty_use(call))
            found.append(self._delta(_json_delta(call["arguments"] or "{}")))
        return found

    def _switch(self, to: str | int, block: Json) -> list[Json]:
        if self._open == to:
            return []
        found = self._close()
        self._open, self._index = to, self._index + 1
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*found, start]

    def _close(self) -> list[Json]:
        if self._open is None:
            return []
        self._open = None
        return [{"type": "content_block_stop", "index": self._index}]

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def end(self) -> list[Json]:
        """Return the end of the message; `message_stop` holds the receipt."""
        for call in self._calls.values():
            self.turn.spelling.keep(call["id"], call["arguments"])
        reason, sequence = stop_of(self._choice)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        last: Json = {"type": "message_stop"}
        if self.turn.receipt:
            last["reef"] = {"agent_record_id": self.turn.receipt}
        body = [*self._others(), *self._close()]
        usage = usage_of(self._usage)
        return [*body, {"type": "message_delta", "delta": delta, "usage": usage}, last]

    def failure(self, error: Json) -> list[Json]:
        """Return the event of an error."""
        return [Messages().error(int(error.get("status") or 500), error)]
