"""Kept-alive connections to a serving node, or to another service of Reef."""

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Iterable

from yarl import URL

from reefcommon.errors import said
from services.gateway.upstream.wire import BrokenOffError, Connection, Headers

# below uvicorn's 5 s, so that a node never closes a connection that is about to be used
KEEP_ALIVE_S = 4.0


class CannotConnectError(OSError):
    """No byte was sent: another node may be asked."""


class Pool:
    """The connections to a server, as many as needed. The latest idle connection is used first."""

    def __init__(
        self, url: str, headers: Headers, *, connect_timeout_s: float, read_timeout_s: float
    ) -> None:
        target = URL(url)
        self._host, self._port = target.host or "", target.port or 80
        self._ssl = ssl.create_default_context() if target.scheme == "https" else None
        self._prefix = target.raw_path.rstrip("/")
        self._connect_timeout_s = connect_timeout_s
        self._read_timeout_s = read_timeout_s
        basic = []
        if target.user or target.password:
            credentials = b64encode(f"{target.user or ''}:{target.password or ''}".encode())
            basic = [(b"authorization", b"Basic " + credentials)]
        host = (target.host_port_subcomponent or "").encode()
        self._fixed = b"".join(b"%b: %b\r\n" % pair for pair in [(b"host", host), *basic, *headers])
        self._lines: dict[str, bytes] = {}
        self._idle: list[Connection] = []
        self._sweeper: asyncio.TimerHandle | None = None

    async def post(
        self, path: str, body: bytes, more: Iterable[tuple[bytes, bytes]] = ()
    ) -> Connection:
        """Send a request and return when the headers of the answer are there.

        The caller gives the connection back, or cuts it.

        Raises:
            CannotConnectError: no byte was sent.
            OSError: the request may have been sent.
        """
        line = self._lines.get(path)
        if line is None:
            target = f"{self._prefix}{path}".encode()
            line = self._lines[path] = b"POST %b HTTP/1.1\r\n%b" % (target, self._fixed)
        extra = b"".join(b"%b: %b\r\n" % pair for pair in more)
        return await self._ask(b"%b%bcontent-length: %d\r\n\r\n" % (line, extra, len(body)), body)

    async def get(
        self, target: str, *, timeout_s: float, max_bytes: int = 512 * 1024 * 1024
    ) -> tuple[int, bytes]:
        """Return status and body of an answer. Raises OSError, also for a longer body."""
        line = f"GET {self._prefix}{target} HTTP/1.1\r\n".encode()
        parts, size = [], 0
        async with asyncio.timeout(timeout_s):
            request = b"%b%b\r\n" % (line, self._fixed)
            try:
                connection = await self._ask(request, b"")
            except BrokenOffError:  # perhaps an idle connection that was closed at that moment
                connection = await self._ask(request, b"")
            try:
                while part := await connection.some():
                    parts.append(part)
                    if (size := size + len(part)) > max_bytes:
                        raise BrokenOffError(f"the body is longer than {max_bytes} bytes")
            except BaseException:
                connection.cut()
                raise
        self.give_back(connection)
        return connection.status, b"".join(parts)

    async def _ask(self, head: bytes, body: bytes) -> Connection:
        connection = self._take() or await self._connect()
        try:
            await connection.ask(head, body)
        except BaseException:
            connection.cut()
            raise
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection whose answer was read to its end."""
        keeps = connection.usable
        connection.rest()
        if not keeps:
            connection.cut()
            return
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = asyncio.get_running_loop().call_later(KEEP_ALIVE_S, self._sweep)

    def close(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None
        while self._idle:
            self._idle.pop().cut()

    def _take(self) -> Connection | None:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and now - connection.idle_since < KEEP_ALIVE_S:
                return connection
            connection.cut()
        return None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                _, connection = await loop.create_connection(
                    lambda: Connection(self._read_timeout_s), self._host, self._port, ssl=self._ssl
                )
        except OSError as error:  # TimeoutError is one
            raise CannotConnectError(said(error)) from error
        return connection

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        idle, self._idle = self._idle, []
        for connection in idle:
            if connection.usable and loop.time() - connection.idle_since < KEEP_ALIVE_S:
                self._idle.append(connection)
            else:
                connection.cut()
        self._sweeper = loop.call_later(KEEP_ALIVE_S / 2, self._sweep) if self._idle else None
