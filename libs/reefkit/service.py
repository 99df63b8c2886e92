"""The frame of a service: consumers, background tasks, checks, start and end.

If a dependency is away, a starting service is alive and not ready until it answers.
"""

# serving HTTP, not ready --prepare() succeeds--> consumers join --> ready, tasks run --SIGTERM-->
# tasks end, broker stops, adapters close in reverse order

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import structlog
from faststream.kafka import KafkaBroker
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from reefkit.background import cancel, end_process_on_failure, run_forever
from reefkit.ops import Health, ops_routes
from reefkit.retry import retried

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class BackgroundTask:
    """A background task. It starts when the consumers run, or at once if `early`.

    If it `ends` it may return; any other return, and every error, ends the process.
    """

    name: str
    run: Callable[[], Coroutine[Any, Any, None]]
    early: bool = False
    ends: bool = False


@dataclass(slots=True)
class Service:
    """One service. `health` names it and holds its broker, checks and facts."""

    health: Health
    broker: KafkaBroker
    prepare: Callable[[], Awaitable[None]] | None = None
    """Called when the broker is connected and before the consumers join. It may publish, and is
    repeated until the outside systems answer."""
    tasks: tuple[BackgroundTask, ...] = ()
    routes: tuple[BaseRoute, ...] = ()
    """Beside the four endpoints of operations."""
    close: tuple[Callable[[], Awaitable[None]], ...] = ()
    """Called after the broker has stopped, last first."""
    _started: asyncio.Event = field(default_factory=asyncio.Event)
    _waits_for: str | None = "not started yet"

    def app(self) -> Starlette:
        """Build the application of a service without an HTTP surface of its own."""
        routes = [*ops_routes(self.health), *self.routes]
        return Starlette(routes=routes, lifespan=self.lifespan)

    @asynccontextmanager
    async def lifespan(self, _app: Any) -> AsyncIterator[None]:
        stopped = f"{self.health.service}_stopped"
        self.health.checks["started"] = self._check_started
        running = [self._begin(task) for task in self.tasks]
        running.append(asyncio.create_task(self._start(), name="start"))
        running[-1].add_done_callback(end_process_on_failure)
        try:
            yield
        finally:
            await cancel(running)
            await self.broker.stop()
            for close in reversed(self.close):
                await close()
            log.info(stopped)

    def _begin(self, given: BackgroundTask) -> "asyncio.Task[None]":
        async def run() -> None:
            if not given.early:
                await self._started.wait()
            await given.run()

        if not given.ends:
            return run_forever(run(), given.name)
        task = asyncio.create_task(run(), name=given.name)
        task.add_done_callback(end_process_on_failure)
        return task

    async def _start(self) -> None:
        waiting = partial(setattr, self, "_waits_for")
        await retried(self._prepare_and_join, name=self.health.service, waiting=waiting)
        self._waits_for = None
        self._started.set()
        started = f"{self.health.service}_started"
        log.info(started)

    async def _prepare_and_join(self) -> None:
        await self.broker.connect()
        if self.prepare is not None:
            await self.prepare()
        await self.broker.start()

    async def _check_started(self) -> str | None:
        return self._waits_for
