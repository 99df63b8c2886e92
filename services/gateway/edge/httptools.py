"""uvicorn's HTTP protocol with limits on the size and the time of a request's headers."""

from asyncio import TimerHandle, Transport

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from reefkit.http1 import DeclineUpgrades
from services.gateway.domain.errors import ApiError, invalid
from services.gateway.domain.headers import headers_too_large


class BoundedHeads(DeclineUpgrades):
    """Refuses headers that are not complete after `max_head_bytes` or `head_timeout_s`."""

    max_head_bytes = 64 * 1024
    head_timeout_s = 20.0
    _head_bytes = 0
    _in_head = False
    _timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        # a connection has as long for its first request as between two
        super().connection_made(transport)
        self._timer = self.loop.call_later(self.head_timeout_s, self._late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._quiet()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_head or self.transport.is_closing():
            return
        self._head_bytes += len(data)
        if self._head_bytes > self.max_head_bytes:
            self._refuse(headers_too_large(self.max_head_bytes))
        elif self._timer is None:
            self._timer = self.loop.call_later(self.head_timeout_s, self._late)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._timer is not None:
            self._quiet()
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse in the API's own shape."""
        self._refuse(invalid(None, msg))

    def _quiet(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self._in_head:
            words = f"The request's headers were not complete within {self.head_timeout_s:g} s."
            self._refuse(ApiError(408, words, code="head_timeout"))
        elif not self.transport.is_closing():  # it sent no byte in that time
            self.transport.close()

    def _refuse(self, error: ApiError) -> None:
        cycle = self.cycle
        busy = cycle is not None and not cycle.response_complete
        if busy and not cycle.response_started and not self.pipeline:
            # its body cannot be read: its handler is told that the client left
            cycle.disconnected = True
            cycle.message_event.set()
            busy = False
        # else another answer is being written: its reader would take this for a part of it
        if not busy:
            body = error.body()
            length = (b"content-length", b"%d" % len(body))
            headers = [*error.headers(), length, (b"connection", b"close")]
            lines = [b"%b: %b\r\n" % pair for pair in headers]
            self.transport.write(b"".join([STATUS_LINE[error.status], *lines, b"\r\n", body]))
        self.transport.close()


def bounded(max_head_bytes: int, head_timeout_s: float) -> type[BoundedHeads]:
    """Return the protocol with these limits."""
    limits = {"max_head_bytes": max_head_bytes, "head_timeout_s": head_timeout_s}
    return type("Bounded", (BoundedHeads,), limits)
