"""An answer that several requests read."""

import asyncio

from services.gateway.domain.errors import ApiError
from services.gateway.domain.exchange import Exchange
from services.gateway.domain.memory import Charge
from services.gateway.exchange.client import Outlet


class SharedAnswer:
    """An answer that several requests read from its beginning while it is being written."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.charge: Charge | None = None
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.parts: list[bytes] = []
        self.ended = False
        self.error: ApiError | None = None
        # True if this process does the work.
        self.decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status, self.headers = status, headers
        self._wake_readers()

    async def write(self, data: bytes, *, more: bool) -> None:
        if data:
            self.parts.append(data)
        self.ended = not more
        self._wake_readers()

    def fail(self, error: ApiError) -> None:
        """End without an answer."""
        self.error = error
        self.ended = True
        self._wake_readers()

    def without(self, exchange: Exchange) -> None:
        """Note that a reader left. If it began the exchange, the work keeps its memory."""
        if exchange is self.exchange and exchange.charge is not None and not self.ended:
            self.charge = exchange.charge.moved()

    def _wake_readers(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def follow(self, out: Outlet) -> None:
        """Send all of it to a reader. Raises ApiError if it failed before it began."""
        while not self.status and not self.ended:
            await self._changed.wait()
        if not self.status:
            words = "The exchange ended without an answer; try again."
            raise self.error or ApiError(503, words, code="no_answer", retry_after_s=1)
        await out.start(self.status, self.headers)
        sent = 0
        while True:
            changed = self._changed
            if sent < len(self.parts):
                data = b"".join(self.parts[sent:])
                sent = len(self.parts)
                await out.write(data, more=True)
            elif self.ended:
                await out.write(b"", more=False)
                return
            else:
                await changed.wait()
