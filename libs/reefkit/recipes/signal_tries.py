"""The tries of units at their signal: those that failed, and those in which the host ended."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from reefkit.jobs.signal_store import SignalStore

MAX_ENDS = 4  # before a supervisor gives the host up


@dataclass(slots=True)
class Tries:
    """The tries of a unit. `others`: signals of other units at its last failure."""

    failures: int = 0
    others: int = 0
    not_before: float = 0.0


@dataclass(slots=True)
class CutOff:
    """Units whose signal was under way when the host ended. `ends`: how often.

    While there are any, signals are computed one at a time.
    """

    # Code of a recipe may have ended the process. Of several at once its unit could not be told.
    store: SignalStore
    binding: str
    ends: dict[str, int] = field(default_factory=dict)

    async def look(self) -> None:
        self.ends = await asyncio.to_thread(self.store.cut_off, self.binding)

    def reason(self, unit_id: str) -> str | None:
        """Return why the signal of a unit is not tried again, or None."""
        ends = self.ends.get(unit_id, 0)
        return f"signal failed: the host ended in it {ends} times" if ends >= MAX_ENDS else None

    @asynccontextmanager
    async def noted(self, unit_id: str) -> AsyncIterator[None]:
        """Keep a note while the signal of a unit is under way."""
        await asyncio.to_thread(self.store.begin_signal, self.binding, unit_id)
        try:
            yield
        finally:
            await asyncio.to_thread(self.store.end_signal, self.binding, unit_id)
            self.ends.pop(unit_id, None)
