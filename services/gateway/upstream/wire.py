"""HTTP/1.1 to a serving node: POST on kept-alive connections, read by httptools (llhttp)."""

import asyncio
from typing import cast

import httptools

MAX_HEAD_BYTES = 64 * 1024
HELD_BYTES = 256 * 1024  # of an answer that its reader has not taken yet; then the node has to wait
PIECE_BYTES = 256 * 1024  # a large body goes out in pieces: in one it would hold up everything else

Headers = list[tuple[bytes, bytes]]


class BrokenOffError(OSError):
    """The node closed the connection, or its bytes are not HTTP."""


# A general client costs a third of an exchange's CPU time, most of it for chunks of streams.
# This one follows no redirects, decodes no content, keeps no cookies and asks no proxy.
class Connection(asyncio.Protocol):
    """A connection and the answer on it.

    `status` is 0 until the headers are there; header names are in lower case.
    """

    def __init__(self, read_timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._read_timeout_s = read_timeout_s
        self._parser = httptools.HttpResponseParser(self)
        # an odd header of a node is dropped later; it is no reason to refuse the answer
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
        )
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._pieces: list[bytes] = []
        self._held = 0
        self._paused = False
        self._heard = 0.0
        self._error: OSError | None = None
        self._busy = False
        self._keeps = True
        self._head_bytes = 0
        self.status = 0
        self.headers: Headers = []
        self.complete = False
        self.idle_since = 0.0

    # -------------------------------------------------- for the pool and the answer's reader

    async def ask(self, head: bytes, body: bytes) -> None:
        """Send a request and wait for the headers of its answer.

        Raises OSError (TimeoutError: silence).
        """
        assert self._transport is not None
        self._busy, self.complete, self.headers = True, False, []
        self.status = self._head_bytes = 0
        self._heard = self._loop.time()
        self._timer = self._loop.call_later(self._read_timeout_s, self._look)
        if len(body) <= PIECE_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.write(head)
            await self._send(body)
        while not self.status:
            await self._more()

    async def some(self) -> bytes:
        """Return the next piece of the body; empty at its end.

        Raises OSError (TimeoutError: silence).
        """
        while not self._pieces:
            if self.complete:
                return b""
            await self._more()
        pieces, self._pieces, self._held = self._pieces, [], 0
        if self._paused and self._transport is not None:
            self._paused = False
            self._heard = self._loop.time()
            self._transport.resume_reading()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @property
    def ended(self) -> bool:
        """True if the whole body came and was taken."""
        return self.complete and not self._pieces

    @property
    def usable(self) -> bool:
        """True if another request may be sent on it."""
        if self._transport is None or self._transport.is_closing() or self._error is not None:
            return False
        return self._keeps and (self.ended or not self._busy)

    def rest(self) -> None:
        """Stop the timer: the answer has been read."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._busy = False
        self.idle_since = self._loop.time()

    def cut(self) -> None:
        """Close it at once: the node then stops generating."""
        self.rest()
        if self._transport is not None:
            self._transport.abort()

    async def _send(self, body: bytes) -> None:
        view = memoryview(body)
        for start in range(0, len(body), PIECE_BYTES):
            if self.status or self._error is not None or self._transport is None:
                self._keeps = False  # it was answered before all was sent
                return
            self._heard = self._loop.time()
            self._transport.write(view[start : start + PIECE_BYTES])
            await asyncio.sleep(0)
            await self._may_write.wait()

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _look(self) -> None:
        # One timer an exchange, set again when it rings: data may come a thousand times a second.
        left_s = self._heard + self._read_timeout_s - self._loop.time()
        if left_s > 0 or (self.status and self._waiter is None):  # or it waits for its reader
            self._timer = self._loop.call_later(max(left_s, self._read_timeout_s / 4), self._look)
        else:
            self._timer = None
            self._fail(TimeoutError(f"the node was silent for {self._read_timeout_s:g} s"))

    def _fail(self, error: OSError) -> None:
        self._error = self._error or error
        self._may_write.set()
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    # -------------------------------------------------- for the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        # without a length, the end of the connection is the end of the answer
        self._transport = None
        begun = self._busy and self.status and not self.complete
        if begun and exc is None and self._ends_with_connection():
            self.complete = True
        elif not self.complete:
            self._error = self._error or BrokenOffError(
                f"the connection was closed: {exc!r}" if exc else "the connection was closed"
            )
        self._may_write.set()
        self._wake()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        self._heard = self._loop.time()
        if not self._busy or self.complete:
            self._fail(BrokenOffError("the node sent something that was not asked for"))
            return
        held = self._held
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(BrokenOffError(f"not an HTTP answer: {error}"))
            return
        # Headers, trailers and chunk extensions without an end would fill the memory.
        self._head_bytes = 0 if self._held > held else self._head_bytes + len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.complete:
            words = f"{MAX_HEAD_BYTES} bytes of the answer have nothing of its body"
            self._fail(BrokenOffError(words))
        elif self._held > HELD_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    # -------------------------------------------------- for the parser

    def on_message_begin(self) -> None:
        # the status line before was that of an interim answer
        if self.complete:
            raise BrokenOffError("more than one answer")
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        # headers after the body (trailers) are dropped
        if not self.status:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        # a final answer follows 1xx (RFC 9110, section 15.2)
        status = self._parser.get_status_code()
        self.status = status if status >= 200 else 0

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)
        self._held += len(body)

    def on_message_complete(self) -> None:
        if self.status:
            self.complete = True
            self._keeps = self._keeps and self._parser.should_keep_alive()

    def _ends_with_connection(self) -> bool:
        return {b"content-length", b"transfer-encoding"}.isdisjoint(dict(self.headers))
