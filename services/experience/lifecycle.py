"""Starting, sweeping, stopping: what the service does by itself, and how it shows that it gets on."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import structlog
from aiokafka.errors import KafkaError

from reefcommon import topics
from reefcommon.errors import Unavailable
from reefkit.background import end, end_process_where_failed, lasting
from reefkit.bus import FIRST_DELAY_S, MAX_DELAY_S, Guard, lags
from services.experience.clickhouse import Database, keep, look_through
from services.experience.handlers import Handlers
from services.experience.kafka import backlog
from services.experience.settings import Settings

log = structlog.get_logger()

STALLED_S = 30.0


@dataclass(slots=True)
class Progress:
    """Fails readiness while events wait and none is committed."""

    guard: Guard
    _committed: int = -1
    _since: float = field(default_factory=time.monotonic)

    async def check(self) -> str | None:
        """None: nothing waits, or the offsets move."""
        assert self.guard.broker is not None
        try:
            partitions = await lags(self.guard.broker)
        except Unavailable as error:
            return str(error)
        committed, waiting = (
            sum(row.position for row in partitions),
            sum(row.lag for row in partitions),
        )
        if committed != self._committed or not waiting:
            self._committed, self._since = committed, time.monotonic()
        stalled_s = time.monotonic() - self._since
        return (
            f"{waiting} events wait and none was handled for {stalled_s:.0f} s"
            if stalled_s > STALLED_S
            else None
        )


@dataclass(slots=True)
class Lifecycle:
    """The service from its start to its end. A store or a broker that is away at the start is waited for; `/readyz` says so."""

    database: Database
    handlers: Handlers
    guard: Guard
    settings: Settings
    starting: str | None = "not started yet"
    damaged: dict[str, str] = field(default_factory=dict)
    """Parts of the embedded store that are not what was written, each with the reason and what to do."""
    _task: asyncio.Task[None] | None = None
    _look: asyncio.Task[None] | None = None

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: Any) -> AsyncIterator[None]:
        """ASGI lifespan. Raises BadConfig where the store was written by another version."""
        assert self.guard.broker is not None
        self._task = lasting(self._live(), "experience")
        try:
            yield
        finally:
            await end(task for task in (self._task, self._look) if task is not None)
            await self.guard.broker.stop()
            await self.database.close()
            log.info("experience_stopped")

    async def check_started(self) -> str | None:
        """None once everything runs, and while it does."""
        return self.starting

    async def check_store(self) -> str | None:
        """None while the store answers."""
        return self.database.away

    async def _live(self) -> None:
        await self._start()
        if self.database.own:
            self._look = asyncio.create_task(self._look_through(), name="store check")
            self._look.add_done_callback(
                end_process_where_failed
            )  # an error of its own kind would else be lost
        while True:
            await asyncio.sleep(self.settings.sweep_every_s)
            try:
                caught_up = (
                    await backlog(self.guard, topics.INFERENCES.name) <= self.settings.batch_records
                )
                await self.handlers.sweep(caught_up=caught_up)
            except (Unavailable, KafkaError) as error:
                log.warning("sweep_put_off", reason=str(error))

    async def _look_through(self) -> None:
        try:
            await look_through(self.database, self.damaged)
        except Unavailable as error:
            log.warning("store_not_looked_through", reason=str(error))

    async def _start(self) -> None:
        assert self.guard.broker is not None
        delay_s = FIRST_DELAY_S
        while True:
            try:
                await self.database.migrate()
                await keep(self.database, self.settings.kept_days)
                await self.handlers.on_start()
                await self.guard.broker.start()
            except (Unavailable, KafkaError) as error:
                self.starting = f"waits for an outside system: {error}"
                log.warning("start_put_off", reason=str(error))
                await self.guard.broker.stop()
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, MAX_DELAY_S)
            else:
                self.starting = None
                log.info("experience_started", store=self.database.where)
                return
