"""The events of a stream of Messages."""

from services.gateway.domain.dialects.base import Json, Translator, Turn
from services.gateway.domain.dialects.growing import Call, Growing
from services.gateway.domain.dialects.message_blocks import (
    asks_thoughts,
    head_of,
    stop_of,
    text_block,
    thinking_block,
    usage_of,
    use_block,
)
from services.gateway.domain.dialects.messages import Messages

_NO_THOUGHTS: Json = {"type": "thinking", "thinking": "", "signature": ""}


def _json_delta(piece: str) -> Json:
    return {"type": "input_json_delta", "partial_json": piece}


class MessageEvents(Translator):
    """Blocks come after each other: thoughts, a text, then each tool."""

    silence = ({"type": "ping"},)

    def __init__(self, turn: Turn) -> None:
        super().__init__(turn)
        self._growing = Growing(turn)
        self._index = -1
        # the open block: None, "text", "thinking", or the number of a call
        self._open: str | int | None = None
        # the call that is sent as it comes, and how much of its arguments
        self._live: int | None = None
        self._sent = 0
        self._late: list[str] = []
        self._thoughts: list[str] = []  # of the open block

    def begin(self) -> list[Json]:
        """Return the start of the message."""
        nothing: Json = {"content": [], "stop_reason": None, "stop_sequence": None}
        message = {**head_of(self.turn), **nothing, "usage": usage_of({})}
        return [{"type": "message_start", "message": message}]

    def chunk(self, chunk: Json) -> list[Json]:
        """Return the events of a chunk."""
        found: list[Json] = []
        for kind, text, number in self._growing.take(chunk):
            if kind == "call":
                found += self._call(self._growing.call(number))
            elif self._live is not None:  # a block that was left cannot be gone on with
                self._late += [text] if kind == "text" else []
            elif kind == "text":
                found += self._switch("text", text_block(""))
                found.append(self._delta({"type": "text_delta", "text": text}))
            elif asks_thoughts(self.turn):
                found += self._switch("thinking", _NO_THOUGHTS)
                self._thoughts.append(text)
                if shown := thinking_block(self.turn, text)["thinking"]:
                    found.append(self._delta({"type": "thinking_delta", "thinking": shown}))
        return found

    def _call(self, call: Call) -> list[Json]:
        # Calls may come mixed, and blocks may not: the first is sent as it comes, others whole.
        if self._live is None and call.name:
            self._live = call.number
        if self._live != call.number:
            return []
        found = self._switch(call.number, use_block(call, {}))
        piece, self._sent = call.arguments[self._sent :], len(call.arguments)
        return [*found, self._delta(_json_delta(piece))] if piece else found

    def _rest(self) -> list[Json]:
        found: list[Json] = []
        for call in self._growing.calls():
            if call.number != self._live:
                found += self._switch(call.number, use_block(call, {}))
                found.append(self._delta(_json_delta(call.arguments or "{}")))
        if late := "".join(self._late):
            found += self._switch("text", text_block(""))
            found.append(self._delta({"type": "text_delta", "text": late}))
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
        found: list[Json] = []
        if self._open == "thinking":
            signature = thinking_block(self.turn, "".join(self._thoughts))["signature"]
            found.append(self._delta({"type": "signature_delta", "signature": signature}))
        self._open, self._thoughts = None, []
        return [*found, {"type": "content_block_stop", "index": self._index}]

    def _delta(self, delta: Json) -> Json:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}

    def end(self) -> list[Json]:
        """Return the end of the message; `message_stop` holds the receipt."""
        for call in self._growing.calls():
            self.turn.spelling.keep(call.id, call.arguments)
        reason, sequence = stop_of(*self._growing.reason())
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        last: Json = {"type": "message_stop"}
        if self.turn.receipt:
            last["reef"] = {"agent_record_id": self.turn.receipt}
        body = [*self._rest(), *self._close()]
        usage = usage_of(self._growing.usage)
        return [*body, {"type": "message_delta", "delta": delta, "usage": usage}, last]

    def failure(self, error: Json) -> list[Json]:
        """Return the event of an error."""
        status = error.get("status")
        return [Messages().error(status if isinstance(status, int) else 500, error)]
