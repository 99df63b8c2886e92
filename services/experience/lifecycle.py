"""The background work of the experience service, and the check that events make progress."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import structlog
from aiokafka.errors import KafkaError

from reefcommon import topics
from reefcommon.errors import Unavailable
from reefkit.bus import Bus, lags
from services.experience.clickhouse import Database, keep
from services.experience.handlers import Handlers
from services.experience.settings import Settings
from services.experience.units import Horizon

log = structlog.get_logger()

STALLED_S = 30.0
BACKLOG_WITHIN_S = 30.0


@dataclass(slots=True)
class Progress:
    """Fails readiness while events wait and no offset is committed."""

    bus: Bus
    _committed: int = -1
    _since: float = field(default_factory=time.monotonic)

    async def check(self) -> str | None:
        """Return None if no event waits, or if the offsets move."""
        try:
            partitions = await lags(self.bus, max_age_s=STALLED_S)
        except Unavailable as error:
            return str(error)
        committed = sum(row.position for row in partitions)
        waiting = sum(row.lag for row in partitions)
        if committed != self._committed or not waiting:
            self._committed, self._since = committed, time.monotonic()
        stalled_s = time.monotonic() - self._since
        if stalled_s <= STALLED_S:
            return None
        return f"{waiting} events wait and none was handled for {stalled_s:.0f} s"


@dataclass(frozen=True, slots=True)
class Lifecycle:
    """The steps before the consumers join, and the sweep beside them."""

    database: Database
    handlers: Handlers
    bus: Bus
    settings: Settings

    async def prepare(self) -> None:
        """Migrate the store, and restore the open sessions. May be repeated.

        Raises:
            BadConfig: a newer version wrote the store.
            Unavailable: the store does not answer.
        """
        await self.database.migrate()
        await keep(self.database, self.settings.kept_days)
        await self.handlers.on_start()

    async def sweep(self) -> None:
        """Expire sessions and waiting reports, until cancelled."""
        while True:
            await asyncio.sleep(self.settings.sweep_every_s)
            try:
                # The missing records may still be in the log.
                at = self.handlers.now()
                rows = await lags(self.bus, wait_s=BACKLOG_WITHIN_S)
                lag = {r.partition: r.lag for r in rows if r.topic == topics.INFERENCES.name}
                behind = frozenset(place for place, waiting in lag.items() if waiting)
                caught_up = sum(lag.values()) <= self.settings.batch_records
                horizon = Horizon(at, behind, frozenset(lag))
                await self.handlers.sweep(caught_up=caught_up, horizon=horizon)
                self.bus.guard.waits.ended("sweep")
            except (Unavailable, KafkaError) as error:
                self.bus.guard.waits.began("sweep", str(error))
                log.warning("sweep_put_off", reason=str(error))

    async def check_store(self) -> str | None:
        return self.database.away

    def facts(self) -> dict[str, Callable[[], Any]]:
        """Return the facts of `/status`."""
        return {
            "store": lambda: self.database.where,
            "kept_days": lambda: self.settings.kept_days,
            "sessions": self.handlers.session_facts,
            "wanted_units": lambda: [asdict(row) for row in self.handlers.units.periods.rows],
            "untagged_sessions": self.handlers.units.tags.facts,
            "parked_reports": lambda: len(self.handlers.parking),
            "oldest_parked_report": self.handlers.waiting_facts,
        }
