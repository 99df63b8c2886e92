"""The client's side of an exchange: its answer, and a watch on its connection."""

import asyncio
from typing import Protocol, Self

import structlog
from starlette.types import Message, Receive, Send

from reefcommon.errors import Unavailable
from services.gateway.domain.errors import ApiError

log = structlog.get_logger()

LOOK_AFTER_S = 0.1  # most answers are there sooner, and need no task that watches


class ClientGone(Exception):
    """The client closed the connection before its answer was complete."""


def refusal_of(error: Exception, route: str) -> ApiError:
    """Return the refusal to send for an error. The log gets the reasons that are not sent."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, Unavailable):
        log.warning("outside_system_unavailable", route=route, reason=str(error))
        words = "A part of Reef that this needs does not answer; try again. /reef/status says which"
        return ApiError(503, f"{words}.", code="unavailable", retry_after_s=2)
    log.error("request_failed", route=route, exc_info=error)
    words = "Reef failed on this request; the operator finds the reason in the log."
    return ApiError(500, words, code="internal_error")


class Outlet(Protocol):
    """The receiver of an answer."""

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send status and headers, once."""

    async def write(self, data: bytes, *, more: bool) -> None:
        """Send a piece of the body. Waits for a slow reader."""


class AsgiOutlet:
    __slots__ = ("_headers", "_send", "broken", "extra", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        self.broken = False  # an error ended the stream after its 200
        self._headers: list[tuple[bytes, bytes]] = []
        # headers of every answer: how much of a limit is left
        self.extra: list[tuple[bytes, bytes]] = []

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status, self._headers = status, headers
        if self.extra:
            headers = [*headers, *self.extra]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def send(self, message: Message) -> None:
        """Relay a message of an ASGI application."""
        if message["type"] == "http.response.start":
            await self.start(message["status"], message["headers"])
        else:
            await self._send(message)

    async def refuse(self, error: ApiError) -> None:
        """Send a refusal.

        If the answer has begun, raise it: the connection ends without its terminator.
        """
        if self.status:
            raise error
        await self.reply(error.status, error.headers(), error.body())

    async def reply(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Send a whole answer."""
        await self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        await self.write(body, more=False)

    @property
    def event_stream(self) -> bool:
        """True if a stream of events has begun."""
        return any(
            name == b"content-type" and value.startswith(b"text/event-stream")
            for name, value in self._headers
        )

    async def write(self, data: bytes, *, more: bool) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def end(self) -> None:
        """Note that the answer is over, however it ended."""


class ClientWatch:
    """Raises ClientGone in its block, within LOOK_AFTER_S, when the client leaves."""

    __slots__ = ("_gone", "_receive", "_task", "_timer", "_watcher")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False
        self._watcher: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._timer = asyncio.get_running_loop().call_later(LOOK_AFTER_S, self._look)
        return self

    def _look(self) -> None:
        self._watcher = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: object
    ) -> None:
        self._timer.cancel()
        if self._watcher is not None and not self._gone:
            self._watcher.cancel()
        if not self._gone:
            return
        if kind is None:  # cancelled, but the block ended first: take the cancellation here
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError as cancelled:
                kind, error = asyncio.CancelledError, cancelled
        if self._task.uncancel() == 0 and kind and issubclass(kind, asyncio.CancelledError):
            raise ClientGone from error
