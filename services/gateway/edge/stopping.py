"""The stop of the gateway: one deadline for all requests."""

import asyncio
import contextlib
from dataclasses import dataclass

from services.gateway.domain.errors import ApiError
from services.gateway.exchange.client import AsgiOutlet

TELL_S = 0.5  # a client that does not read is not waited for


@dataclass(slots=True)
class Stopping:
    """The deadline, and the number of requests that it cut off."""

    drain_s: float
    deadline: float | None = None
    cut: int = 0

    def begin(self) -> float:
        """Set the deadline, once. Returns it."""
        if self.deadline is None:
            self.deadline = asyncio.get_running_loop().time() + self.drain_s
        return self.deadline

    def cut_off(self, requests: "list[asyncio.Task[None]]") -> None:
        """End the requests that still run at the deadline."""
        self.cut += len(requests)
        for request in requests:
            request.cancel()

    async def tell(self, out: AsgiOutlet) -> bool:
        """Tell the client why its request was cut. False if it was not cut."""
        if not self.cut:  # cancelled by another part: not for the stop
            return False
        words = "The gateway stopped before the answer was complete; try again."
        error = ApiError(503, words, code="stopped", retry_after_s=2)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TELL_S):
                if not out.status:
                    await out.refuse(error)
                elif out.event_stream:
                    await out.write(b"data: " + error.body() + b"\n\n", more=False)
        return True
