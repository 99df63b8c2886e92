"""uvicorn's HTTP/1.1 protocol for servers that speak nothing else."""

import asyncio

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_OFFER = frozenset({b"upgrade", b"http2-settings"})


class HeadFirst:
    """The transport of one answer: its head and what follows at once go out in one write."""

    # uvloop writes at once, and each write wakes the client.

    __slots__ = ("_head", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head: bytes | None = b""  # None once it was sent

    def write(self, data: bytes) -> None:
        head = self._head
        if head is None:
            self._transport.write(data)
        elif not head:
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._head = None
            self._transport.write(head + data)

    def _flush(self) -> None:
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
            self._head = None

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


class DeclineUpgrades(HttpToolsProtocol):
    """Answer an upgrade request over HTTP/1.1 (RFC 9110, section 7.8): Java offers `h2c`."""

    # The parser takes all bytes after such a head for the other protocol, so that the body would be
    # lost. A fresh parser gets the head again, without the offer.

    _offered = False

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        while data and self.parser is not None:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                if not self._offered:  # CONNECT, which no route takes
                    return
                data = self._without_offer() + data[offer.args[0] :]
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return

    def on_headers_complete(self) -> None:
        self._offered = self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if not self._offered:
            super().on_headers_complete()
            self.cycle.transport = HeadFirst(self.transport, self.loop)  # type: ignore[assignment]

    def on_message_complete(self) -> None:
        if not self._offered:
            super().on_message_complete()

    def _without_offer(self) -> bytes:
        lines = [b"%b %b HTTP/1.1" % (self.parser.get_method(), self.url)]
        for name, value in self.headers:
            if name == b"connection":
                tokens = (token.strip() for token in value.split(b","))
                kept = b", ".join(token for token in tokens if token.lower() not in _OFFER)
                lines.append(b"connection: " + kept)
            elif name not in _OFFER:
                lines.append(b"%b: %b" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        return b"\r\n".join([*lines, b"", b""])
