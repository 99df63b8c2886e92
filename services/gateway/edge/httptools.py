"""uvicorn's HTTP protocol with an end to heads: it would collect headers for ever, and wait for them for ever."""

from asyncio import TimerHandle, Transport
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from reefkit.http1 import DeclineUpgrades
from services.gateway.domain.errors import ApiError, invalid
from services.gateway.domain.head import head_too_large


class BoundedHeads(DeclineUpgrades):
    """Refuses a head that is not complete after `max_head_bytes`, or after `head_timeout_s`; a connection that says nothing is closed.

    What comes in one read costs nothing here but a comparison. A head that is complete is measured by the edge.
    """

    max_head_bytes = 64 * 1024
    head_timeout_s = 20.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_bytes = 0
        self._in_head = False
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """A connection; it has as long for its first request as between two."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.head_timeout_s, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._quiet()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes of the client."""
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._head_bytes > self.max_head_bytes:
            self._refuse(head_too_large(self.max_head_bytes))
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_timeout_s, self._late)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head = False
        if self._timer is not None:
            self._quiet()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Not HTTP, or not such as is served. In the API's own shape."""
        self._refuse(invalid(None, msg))

    def _quiet(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self._in_head:
            self._refuse(
                ApiError(
                    408,
                    f"The request's headers were not complete within {self.head_timeout_s:g} s.",
                    code="head_timeout",
                )
            )
        elif not self.transport.is_closing():
            self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        cycle = self.cycle
        busy = cycle is not None and not cycle.response_complete
        if busy and not cycle.response_started and not self.pipeline:
            cycle.disconnected = True  # its body is what cannot be read: the handler is told that nobody waits for it any more
            cycle.message_event.set()
            busy = False
        if (
            not busy
        ):  # else another answer is being written: its reader would take this for a part of it
            body = error.body()
            headers = [
                *error.headers(),
                (b"content-length", b"%d" % len(body)),
                (b"connection", b"close"),
            ]
            lines = [
                STATUS_LINE[error.status],
                *(b"%b: %b\r\n" % pair for pair in headers),
                b"\r\n",
                body,
            ]
            self.transport.write(b"".join(lines))
        self.transport.close()


def bounded(max_head_bytes: int, head_timeout_s: float) -> type[BoundedHeads]:
    """The protocol with these limits."""
    return type(
        "Bounded",
        (BoundedHeads,),
        {"max_head_bytes": max_head_bytes, "head_timeout_s": head_timeout_s},
    )
