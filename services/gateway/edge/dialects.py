"""A client of another format: its requests become chats, and its answers the format's own."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.types import Message, Send

from reefcommon.errors import Unavailable
from reefcommon.ids import is_receipt
from services.gateway.domain.dialects import COUNT_TOKENS, MESSAGES, RESPONSES
from services.gateway.domain.dialects.base import (
    CHAT_PATH,
    Dialect,
    Spelling,
    Translator,
    Turn,
    event,
)
from services.gateway.domain.dialects.message_events import MessageEvents
from services.gateway.domain.dialects.messages import CountTokens, Messages
from services.gateway.domain.dialects.response_events import ResponseEvents
from services.gateway.domain.dialects.response_items import PREFIX, referred
from services.gateway.domain.dialects.responses import Responses, continued
from services.gateway.domain.errors import ApiError
from services.gateway.domain.jsontext import dumps, loads
from services.gateway.domain.sse import Frames, data_of
from services.gateway.exchange.client import AsgiOutlet
from services.gateway.ports import Reads

# A path of the gateway that relays and does not record; the engine's own is /tokenize.
COUNTED_AS, TOKENIZE = "/v1/embeddings", "/tokenize"
DIALECTS: Mapping[str, Dialect] = {
    MESSAGES: Messages(),
    COUNT_TOKENS: CountTokens(),
    RESPONSES: Responses(),
}
TRANSLATORS: Mapping[str, type[Translator]] = {
    Messages.api: MessageEvents,
    Responses.api: ResponseEvents,
}
_MALFORMED = (AttributeError, IndexError, KeyError, TypeError)
REFERENCE, MAX_REFERRED = "item_reference", 64
SILENCE_S = 10.0  # a client with a limit on silence gives up a slow first token
EARLIER_S = 3.0  # an earlier response's record is in the store soon after its answer


class DialectOutlet(AsgiOutlet):
    """Translates an answer on its way out. Without a turn (the request was refused) errors only."""

    __slots__ = (
        *("_body", "_dialect", "_failed", "_frames", "_head", "_translator", "turn"),
        *("_ping", "_sending", "_timer", "_wrote_at"),
    )

    def __init__(self, send: Send, dialect: Dialect) -> None:
        super().__init__(send)
        self._dialect = dialect
        self.turn: Turn | None = None
        self._frames, self._failed = Frames(), False
        self._translator: Translator | None = None
        self._head: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._sending = asyncio.Lock()
        self._wrote_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._ping: asyncio.Task[None] | None = None

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send the head of a stream; keep that of a whole answer, whose length will change."""
        # The translated answer has a length of its own, and so has a stream that came whole.
        headers = [pair for pair in headers if pair[0] != b"content-length"]
        self.status, self._headers, self._head = status, headers, headers
        if self.turn is not None:
            self.turn.receipt = dict(headers).get(b"x-reef-agent-record-id", b"").decode()
            self.turn.created = self.turn.ended = int(time.time())
        if self.event_stream:
            await super().start(status, headers)
            if self.turn is not None and TRANSLATORS[self._dialect.api].silence:
                self._listen(asyncio.get_running_loop(), SILENCE_S)

    async def send(self, message: Message) -> None:
        """Relay a message of the control application: it refuses other methods."""
        if message["type"] == "http.response.body":
            body, more = message.get("body", b""), message.get("more_body", False)
            await self.write(body, more=more)
        else:
            await super().send(message)

    async def write(self, data: bytes, *, more: bool) -> None:
        """Translate a piece of the body."""
        if self.event_stream and self.turn is not None:
            async with self._sending:  # a ping that waits for a slow reader goes first
                if not more:
                    self.end()
                await super().write(self._events(self.turn, data), more=more)
                self._wrote_at = asyncio.get_running_loop().time()
            return
        self._body.append(data)
        if more:
            return
        whole = self._whole(b"".join(self._body))
        length = (b"content-length", b"%d" % len(whole))
        await super().start(self.status, [*self._head, length])
        await super().write(whole, more=False)

    def end(self) -> None:
        """Send no more pings."""
        if self._timer is not None:
            self._timer.cancel()
        if self._ping is not None:
            self._ping.cancel()

    def _listen(self, loop: asyncio.AbstractEventLoop, seconds: float) -> None:
        self._timer = loop.call_later(seconds, self._after_silence, loop)

    def _after_silence(self, loop: asyncio.AbstractEventLoop) -> None:
        left = self._wrote_at + SILENCE_S - loop.time()
        if left <= 0 and not self._sending.locked() and not self._failed:
            self._ping = loop.create_task(self._show_life())
        self._listen(loop, left if left > 0 else SILENCE_S)

    async def _show_life(self) -> None:
        assert self.turn is not None
        async with self._sending:
            begun = self._events(self.turn, b"")
            pings = b"".join(map(event, TRANSLATORS[self._dialect.api].silence))
            await super().write(begun + pings, more=True)

    def _whole(self, raw: bytes) -> bytes:
        try:
            body = loads(raw)
        except ValueError:
            return raw
        if self.status < 400 and self.turn is not None:
            try:
                return dumps(self._dialect.answer(self.turn, body))
            except _MALFORMED:
                self.status, body = 502, {"error": _unreadable()}
        error = body.get("error") if isinstance(body, dict) else None
        return dumps(self._dialect.error(self.status, error or {"message": ""}))

    def _events(self, turn: Turn, data: bytes) -> bytes:
        found: list[dict[str, Any]] = []
        if self._translator is None:
            self._translator = TRANSLATORS[self._dialect.api](turn)
            found += self._translator.begin()
        for frame in self._frames.feed(data):
            if (text := data_of(frame)) and not self._failed:
                found += self._event(self._translator, text)
        return b"".join(map(event, found))

    def _event(self, translator: Translator, text: bytes) -> list[dict[str, Any]]:
        if text == b"[DONE]":
            translator.turn.ended = int(time.time())
            return translator.end()
        try:
            chunk = loads(text)
            if "error" not in chunk:
                return translator.chunk(chunk)
            error = chunk["error"]
        except (*_MALFORMED, ValueError):
            error = _unreadable()
        self._failed = self.broken = True
        return translator.failure(error)


def _unreadable() -> dict[str, Any]:
    words = "The serving node sent an answer that is no chat."
    return {"message": words, "type": "server_error", "code": "upstream_invalid"}


@dataclass(frozen=True, slots=True)
class Translation:
    """Turns the bodies of a dialect into those of a chat."""

    reads: Reads
    spelling: Spelling = field(default_factory=Spelling)

    async def read(self, path: str, raw: bytes, scenario: str, out: DialectOutlet) -> bytes:
        """Return the chat request, and give the outlet its turn. Raises ApiError."""
        if path == RESPONSES and REFERENCE.encode() in raw:
            raw = await self._resolved(raw, scenario)
        turn = DIALECTS[path].turn(raw, self.spelling)
        earlier = turn.asked.get("previous_response_id")
        if path == RESPONSES and earlier is not None:
            record = await self._earlier(earlier, scenario)
            turn.chat["messages"] = continued(record, turn.chat["messages"])
        out.turn = turn
        return orjson.dumps(turn.chat)

    async def _earlier(self, name: object, scenario: str) -> dict[str, Any]:
        record = await self._record(_after(PREFIX, name), scenario)
        if record is not None:
            return record
        words = "The response of 'previous_response_id' is not known here."
        raise ApiError(404, words, code="previous_response_not_found", param="previous_response_id")

    async def _resolved(self, raw: bytes, scenario: str) -> bytes:
        """Return a request with the items in place of their references. Raises ApiError."""
        try:
            body = loads(raw)
        except ValueError:
            return raw  # the dialect says what is wrong
        items = body.get("input") if isinstance(body, dict) else None
        if not isinstance(items, list):
            return raw
        found, records = [], dict[str, Any]()
        for index, item in enumerate(items):
            if not isinstance(item, dict) or item.get("type") != REFERENCE:
                found.append(item)
                continue
            kind, receipt, number = _place(str(item.get("id")))
            if receipt not in records and len(records) < MAX_REFERRED:
                records[receipt] = await self._record(receipt, scenario)
            there = None
            with suppress(*_MALFORMED):
                there = referred(records[receipt], kind, number)
            if there is None:
                words = f"The item {str(item.get('id'))[:80]!r} is not known here."
                raise ApiError(404, words, code="item_not_found", param=f"input[{index}]")
            found += there
        return dumps({**body, "input": found})

    async def _record(self, receipt: str, scenario: str) -> dict[str, Any] | None:
        deadline, pause_s = time.monotonic() + EARLIER_S, 0.05
        while is_receipt(receipt):  # it becomes part of a path
            status, body = await self.reads.get(f"/records/{receipt}", {})
            record = orjson.loads(body).get("record") if status == 200 else None
            if isinstance(record, dict) and record.get("request"):
                return record if record.get("scenario") == scenario else None
            if status not in (200, 404):
                raise Unavailable(f"the experience service answers {status}")
            if time.monotonic() > deadline:
                break
            await asyncio.sleep(pause_s)
            pause_s *= 2
        return None


def _after(prefix: str, name: object) -> str:
    return name.removeprefix(prefix) if isinstance(name, str) else ""


def _place(name: str) -> tuple[str, str, int]:
    """Return kind, receipt and number of an item, from its id."""
    kind, _, rest = name.partition("_")
    if kind not in ("fc", "ctc"):
        return kind, rest if kind in ("msg", "rs") else "", 0
    receipt, _, number = rest.rpartition("_")
    return kind, receipt, int(number) if number.isdecimal() and len(number) < 5 else 0


def chat_path(path: str) -> str:
    """Return the path that a dialect's request takes inside the gateway."""
    return COUNTED_AS if path == COUNT_TOKENS else CHAT_PATH
