"""HTTP/1.1 to a serving node, with as little as an exchange needs: POST on kept-alive connections, answers read by httptools (llhttp).

A general client costs a third of an exchange's CPU time, most of it per chunk of a stream. This one follows no redirects, decodes no
content, keeps no cookies and asks no proxy: nothing of that may happen to an exchange anyway.
"""

import asyncio
from typing import cast

import httptools

MAX_HEAD_BYTES = 64 * 1024
HELD_BYTES = 256 * 1024  # of an answer that its reader has not taken yet; then the node has to wait
PIECE_BYTES = 256 * 1024  # a large body goes out in pieces: in one it would hold up everything else

Headers = list[tuple[bytes, bytes]]


class BrokenOffError(OSError):
    """The node closed the connection, or sent what is not HTTP."""


class Connection(asyncio.Protocol):
    """One connection, and the answer that comes on it. `status` is 0 until the answer's head is there; header names are in lower case."""

    def __init__(self, read_timeout_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._read_timeout_s = read_timeout_s
        self._parser = httptools.HttpResponseParser(self)
        # a header of a node that is not quite in order is left out of the answer later; it is no reason to refuse the answer
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

    # ------------------------------------------------------------------ what the pool and the answer's reader do

    async def ask(self, head: bytes, body: bytes) -> None:
        """Send a request and wait for the head of its answer. Raises OSError (TimeoutError: silence)."""
        assert self._transport is not None
        self._busy, self.status, self.complete, self.headers, self._head_bytes = (
            True,
            0,
            False,
            [],
            0,
        )
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
        """The next piece of the body; empty at its end. Raises OSError (TimeoutError: silence)."""
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
        """Nothing of the body is left to come or to be taken."""
        return self.complete and not self._pieces

    @property
    def usable(self) -> bool:
        """Another request may be sent on it."""
        open_ = self._transport is not None and not self._transport.is_closing()
        return (
            open_ and self._error is None and (self.ended if self._busy else True) and self._keeps
        )

    def rest(self) -> None:
        """The answer has been read: no silence is too long any more."""
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
        """One timer an exchange, set anew when it rings: data may come a thousand times a second."""
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

    # ------------------------------------------------------------------ what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Connected."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Closed, by either side; where nothing else says where the answer ends, this is its end."""
        self._transport = None
        if (
            self._busy
            and self.status
            and not self.complete
            and exc is None
            and self._ends_with_connection()
        ):
            self.complete = True
        elif not self.complete:
            self._error = self._error or BrokenOffError(
                f"the connection was closed: {exc!r}" if exc else "the connection was closed"
            )
        self._may_write.set()
        self._wake()

    def pause_writing(self) -> None:
        """The node does not take what is sent."""
        self._may_write.clear()

    def resume_writing(self) -> None:
        """It does again."""
        self._may_write.set()

    def data_received(self, data: bytes) -> None:
        """Bytes of the answer; none may come when nothing was asked."""
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
        # Heads, trailers and what is said of chunks: without an end to them the parser would collect, and the reader wait, for ever.
        self._head_bytes = 0 if self._held > held else self._head_bytes + len(data)
        if self._head_bytes > MAX_HEAD_BYTES and not self.complete:
            self._fail(
                BrokenOffError(f"{MAX_HEAD_BYTES} bytes of the answer have nothing of its body")
            )
        elif self._held > HELD_BYTES and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    # ------------------------------------------------------------------ what the parser calls

    def on_message_begin(self) -> None:
        """A status line; the one before was an interim answer."""
        if self.complete:
            raise BrokenOffError("more than one answer")
        self.headers = []

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header. What follows the body (trailers) is left out."""
        if not self.status:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is there. 1xx is followed by another one (RFC 9110, section 15.2)."""
        status = self._parser.get_status_code()
        self.status = status if status >= 200 else 0

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        self._pieces.append(body)
        self._held += len(body)

    def on_message_complete(self) -> None:
        """The end of the body."""
        if self.status:
            self.complete = True
            self._keeps = self._keeps and self._parser.should_keep_alive()

    def _ends_with_connection(self) -> bool:
        return not any(
            name in {b"content-length", b"transfer-encoding"} for name, _ in self.headers
        )
