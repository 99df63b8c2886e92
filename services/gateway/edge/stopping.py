"""The end: one deadline for all that is under way, whoever waits for it."""

import asyncio
import contextlib
from dataclasses import dataclass

from services.gateway.domain.errors import ApiError
from services.gateway.exchange.client import AsgiOutlet

TELL_S = 0.5  # a client that does not read is not waited for


@dataclass(slots=True)
class Stopping:
    """When the gateway was told to stop, and what it cut off for that."""

    drain_s: float
    deadline: float | None = None
    cut: int = 0

    def begin(self) -> float:
        """From now on the deadline is known; asked again, it is the same one."""
        if self.deadline is None:
            self.deadline = asyncio.get_running_loop().time() + self.drain_s
        return self.deadline

    def cut_off(self, requests: "list[asyncio.Task[None]]") -> None:
        """The deadline has come: end what still runs."""
        self.cut += len(requests)
        for request in requests:
            request.cancel()

    async def tell(self, out: AsgiOutlet) -> bool:
        """Say to the client of a cancelled request why it ends there, as far as that can be said. False: it was not cut off for the end."""
        if not self.cut:
            return False
        error = ApiError(
            503,
            "The gateway stopped before the answer was complete; try again.",
            code="stopped",
            retry_after_s=2,
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TELL_S):
                if not out.status:
                    await out.refuse(error)
                elif out.event_stream:
                    await out.write(b"data: " + error.body() + b"\n\n", more=False)
        return True
