"""The right to do the work of a key: renewed while it goes on, and looked at before its record is written."""

import asyncio
from dataclasses import dataclass

import structlog

from reefcommon.errors import Unavailable
from services.gateway.domain.keys import KeyEntry
from services.gateway.ports import KeyStore

log = structlog.get_logger()

RENEWALS_A_LEASE = 3


@dataclass(slots=True)
class Lease:
    """Held until `until`, in the time of the event loop, which goes on while the process stands still."""

    ledger: KeyStore
    key: str
    entry: KeyEntry
    seconds: float
    until: float

    async def keep(self) -> None:
        """For ever: renew it."""
        while True:
            await asyncio.sleep(self.seconds / RENEWALS_A_LEASE)
            began = asyncio.get_running_loop().time()
            try:
                await self.ledger.renew(self.key, self.entry, lease_s=self.seconds)
            except Unavailable as error:
                log.warning("ledger_unavailable", key=self.key, reason=str(error))
            else:
                if (
                    began < self.until
                ):  # else it may be another's by now, which renewing does not tell
                    self.until = began + self.seconds

    async def held(self) -> bool:
        """Whether nobody else can have begun this work. After a long halt the ledger is asked who has the key; while it is away nobody
        can have taken it."""
        if asyncio.get_running_loop().time() < self.until:
            return True
        try:
            found = await self.ledger.find(self.key)
            if found is None:
                found = await self.ledger.claim(self.key, self.entry, lease_s=self.seconds)
        except Unavailable:
            return True
        return found is None or found.state == "free" or found.owner == self.entry.owner

    async def give_up(self, *, unrecorded: bool) -> None:
        """Let others take the key, unless it is another's by now. `unrecorded`: nothing was written under it, for certain; else only the
        store can say so."""
        try:
            found = await self.ledger.find(self.key)
            if found is None or found.owner != self.entry.owner:
                return
            if unrecorded:
                await self.ledger.free(self.key, self.entry)
            else:
                await self.ledger.release(self.key)
        except Unavailable as error:
            log.warning("ledger_unavailable", key=self.key, reason=str(error))
