"""An answer of a serving node: its body as it comes, and the headers that a client may see."""

import asyncio
import re
import time
from collections.abc import AsyncIterator

import structlog

from services.gateway import metrics
from services.gateway.domain.balance import Node
from services.gateway.domain.errors import UpstreamFailed, answer_too_large
from services.gateway.domain.sse import Frames
from services.gateway.upstream.pool import Pool
from services.gateway.upstream.wire import Connection, Headers

log = structlog.get_logger()

_DROPPED = frozenset(
    {
        b"connection", b"content-length", b"content-encoding", b"date", b"keep-alive",
        b"proxy-authenticate", b"server", b"set-cookie", b"te", b"trailer", b"transfer-encoding",
        b"upgrade",
    }
)  # fmt: skip
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")  # RFC 9110, section 5.6.2, in lower case
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
DRAIN_S = 0.5


class HttpAnswer:
    """EngineAnswer on a connection to a node."""

    __slots__ = (
        "_ahead", "_connection", "_kept", "_limit_bytes", "_node", "_pool", "_secret", "_whole",
        "event_stream", "headers", "status",
    )  # fmt: skip

    def __init__(
        self, connection: Connection, pool: Pool, node: Node, *, limit_bytes: int, secret: bytes
    ) -> None:
        self._connection = connection
        self._pool = pool
        self._node = node
        self._limit_bytes = limit_bytes
        # Some nodes repeat Reef's own key: in errors, in events, in headers of their debugging.
        self._secret = secret
        self._kept = b""  # perhaps the beginning of the key
        self._ahead = b""
        self._whole: bytes | None = None
        self.status = connection.status
        self.headers = [
            (name, value.replace(secret, b"***") if secret else value)
            for name, value in relayed(connection.headers)
        ]
        content_type = value_of(connection.headers, b"content-type")
        self.event_stream = content_type.partition(b";")[0].strip() == b"text/event-stream"

    async def read(self) -> bytes:
        if self._whole is not None:
            return self._whole
        parts, size = [], 0
        while part := await self._some():
            parts.append(part)
            size += len(part)
            if size > self._limit_bytes:
                raise answer_too_large()
        self._whole = b"".join(parts)
        return self._whole

    async def first_frame(self) -> bytes:
        """Return the first frame of an event stream, empty if none came; `chunks` has it again.

        Raises UpstreamFailed, ValueError (a frame without end).
        """
        frames = Frames()
        found: list[bytes] = []
        while not found and (part := await self._some()):
            self._ahead += part
            found = frames.feed(part)
        return found[0] if found else b""

    async def chunks(self) -> AsyncIterator[bytes]:
        if self._ahead:
            yield self._ahead
        while chunk := await self._some():
            yield chunk

    async def _some(self) -> bytes:
        while True:
            try:
                part = await self._connection.some()
            except OSError as error:
                self._node.failed(time.monotonic())
                raise failed(self._node, error, "The serving node broke off its answer") from error
            if not self._secret:
                return part
            found = (self._kept + part).replace(self._secret, b"***")
            kept = _begun(found, self._secret) if part else 0
            end = len(found) - kept
            self._kept = found[end:]
            if end or not part:
                return found[:end]

    async def close(self, *, finished: bool) -> None:
        self._node.in_flight -= 1
        connection = self._connection
        # the last chunk of a chunked body may still be on its way
        if finished and not connection.ended:
            try:
                async with asyncio.timeout(DRAIN_S):
                    while await connection.some():
                        pass
            except OSError:
                finished = False
        if finished:
            self._pool.give_back(connection)
        else:
            connection.cut()


def _begun(data: bytes, secret: bytes) -> int:
    """Return the length of a secret's beginning at the end of some data."""
    most = min(len(data), len(secret) - 1)
    return next((n for n in range(most, 0, -1) if data.endswith(secret[:n])), 0)


def relayed(headers: Headers) -> list[tuple[bytes, bytes]]:
    """Return a node's headers for the client, names in lower case.

    Headers of the connection, in Reef's name, or that would break the answer are dropped.
    """
    return [
        (name, value)
        for name, value in headers
        if name not in _DROPPED
        and not name.startswith(b"x-reef-")
        and _NAME.fullmatch(name)
        and _VALUE.fullmatch(value)
    ]


def value_of(headers: Headers, name: bytes) -> bytes:
    """Return the first value of a header in lower case; empty if it is absent."""
    return next((value.lower() for found, value in headers if found == name), b"")


def useless(answer: Connection) -> str | None:
    """Return the reason if an answer cannot be relayed, as far as its headers say."""
    if answer.status in {401, 403}:
        words = f"refused Reef's credentials ({answer.status})"
        return f"{words}; the operator sets REEF_ENGINE_API_KEY"
    return unreadable(answer)


def unreadable(answer: Connection) -> str | None:
    """Return the reason if an answer is in no form that Reef reads, as far as its headers say."""
    if value_of(answer.headers, b"content-encoding") not in {b"identity", b""}:
        return "sent an encoded answer without being asked"
    if not 200 <= answer.status < 300 and not 400 <= answer.status < 600:
        return f"answered with status {answer.status}"
    return None


def failed(node: Node, error: BaseException, words: str) -> UpstreamFailed:
    """Return the failure for the client: 504 for a timeout, else 502."""
    timed_out = isinstance(error, TimeoutError)
    metrics.ENGINE_ERRORS.labels(node.url, "timeout" if timed_out else type(error).__name__).inc()
    log.warning("engine_failed", engine=node.url, reason=repr(error)[:300])
    if timed_out:
        return UpstreamFailed(504, f"{words}: it timed out.", code="upstream_timeout")
    return UpstreamFailed(502, f"{words}.", code="upstream_failed")
