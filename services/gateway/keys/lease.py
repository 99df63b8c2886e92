"""The right to do the work of a key."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import structlog

from reefcommon.errors import Unavailable
from services.gateway.domain.keys import KeyEntry, State
from services.gateway.ports import KeyStore

log = structlog.get_logger()

RENEWALS_A_LEASE = 3


def renewal_s(lease_s: float) -> float:
    """Seconds between two renewals."""
    # Short, so that a key that Redis has lost is soon taken again.
    return min(lease_s / RENEWALS_A_LEASE, 1.0)


@contextmanager
def absence_logged(key: str) -> Iterator[None]:
    """Log Unavailable instead of raising it: the lease runs out, and the log knows the rest."""
    try:
        yield
    except Unavailable as error:
        log.warning("key_store_unavailable", key=key, reason=str(error))


@dataclass(slots=True)
class Lease:
    """Held until `until`, a time of the event loop."""

    store: KeyStore
    key: str
    entry: KeyEntry
    seconds: float
    until: float

    async def keep(self) -> None:
        while True:
            await asyncio.sleep(renewal_s(self.seconds))
            with absence_logged(self.key):
                if not await self._renew():
                    return  # the work has ended, and the store's client lost the cancellation

    async def held(self) -> bool:
        """False if another gateway may have begun this work, or has done it."""
        if asyncio.get_running_loop().time() < self.until:
            return True
        try:
            return await self._renew()
        except Unavailable:
            return True  # while the store is away no gateway can have taken the key

    async def _renew(self) -> bool:
        # The lease counts from before the call: the store's time begins between call and answer.
        began = asyncio.get_running_loop().time()
        ours = await self.store.renew(self.key, self.entry, lease_s=self.seconds)
        if ours:
            self.until = began + self.seconds
        return ours

    async def give_up(self, *, unrecorded: bool) -> None:
        """Let others take the key, unless another has it.

        unrecorded: no event was written under it; else only the log can say so.
        """
        with absence_logged(self.key):
            current = await self.store.find(self.key)
            if current is not None and current.owner == self.entry.owner:
                state: State = "free" if unrecorded else "unsure"
                ended = replace(self.entry, state=state, ended_at=time.time())
                await self.store.complete(self.key, ended)
