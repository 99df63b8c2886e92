"""Start and stop of the gateway."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import structlog
from redis.asyncio import Redis

from reefcommon.errors import Unavailable
from reefcommon.events import Event, ReleasePublished, ServingSynced
from reefkit.background import cancel, run_forever
from reefkit.ops import Health
from services.gateway import metrics
from services.gateway.control.experience import ExperienceReads
from services.gateway.control.fanout import Fanout
from services.gateway.control.rejections import Rejections
from services.gateway.control.scenarios import Scenarios
from services.gateway.edge.asgi import Edge
from services.gateway.edge.redis_buckets import RedisBuckets
from services.gateway.keys.redis import RedisKeyStore
from services.gateway.log.durable import DurableLog
from services.gateway.log.release_tail import ReleaseTail
from services.gateway.settings import Settings
from services.gateway.upstream.engines import HttpEngines
from services.gateway.upstream.rotation import RotationFollower

log = structlog.get_logger()

# The longest wait for the broker at start and stop; events that it has not taken stay on disk.
BROKER_WITHIN_S = 2.0


@dataclass(frozen=True)
class Adapters:
    """The outside systems of a running gateway."""

    log: DurableLog
    engines: HttpEngines
    tail: ReleaseTail
    ledger: RedisKeyStore
    buckets: RedisBuckets
    reads: ExperienceReads
    rotation: RotationFollower
    heads_client: Redis


@dataclass(frozen=True)
class Lifecycle:
    """The parts that are started and stopped around the application."""

    edge: Edge
    scenarios: Scenarios
    fanout: Fanout
    rejections: Rejections
    health: Health
    settings: Settings
    outside: Adapters

    @contextlib.asynccontextmanager
    async def span(self, _app: Any) -> AsyncIterator[None]:
        """FastAPI's lifespan."""
        self._describe()
        outside = self.outside
        await outside.log.spool.open()
        tasks = [
            run_forever(outside.log.run(), "log"),
            run_forever(outside.log.watch(), "log watch"),
        ]
        await outside.engines.start()
        await outside.reads.start()
        await self.scenarios.snapshot()
        with contextlib.suppress(Unavailable):
            await (
                outside.ledger.since()
            )  # before the first request: what comes from now on is remembered
        await asyncio.gather(outside.engines.look(), outside.rotation.look())
        await outside.log.back(BROKER_WITHIN_S)
        tasks += [
            run_forever(
                outside.tail.run(
                    self.scenarios.snapshot,
                    self._on_news,
                    every_s=self.settings.snapshot_s,
                    on_past=self.rejections.hear,
                ),
                "releases",
            ),
            run_forever(outside.engines.watch(), "engines"),
            run_forever(outside.rotation.follow(), "rotation"),
        ]
        log.info(
            "gateway_started",
            engines=len(outside.engines.nodes),
            scenarios=self.scenarios.handlers.table.scenarios(),
        )
        try:
            yield
        finally:
            await self._drain()
            await cancel(tasks)
            await self._close()
            log.info(
                "gateway_stopped",
                unacknowledged=outside.log.broker.waiting,
                spooled=outside.log.spool.records,
            )

    async def _on_news(self, event: Event) -> None:
        if isinstance(event, ReleasePublished):
            await self.scenarios.handlers.on_release(event)
        self.rejections.hear(event)
        if not isinstance(event, ServingSynced):
            self.fanout.tell(event)

    async def _drain(self) -> None:
        # uvicorn leaves keyed exchanges whose clients left, records of exchanges that were cut off,
        # and the spool
        now, stopping, leftovers = (
            asyncio.get_running_loop().time,
            self.edge.stopping,
            self.edge.inference.recorder.leftovers,
        )
        deadline = stopping.begin()
        exchanges = await self.edge.repeats.drain(deadline)
        last = (
            max(deadline, now()) + BROKER_WITHIN_S
        )  # for what is recorded of those that were cut off
        if leftovers:
            await asyncio.wait(leftovers, timeout=last - now())
        if stopping.cut or exchanges or leftovers:
            log.warning(
                "drain_deadline_passed",
                requests=stopping.cut,
                exchanges=exchanges,
                records=len(leftovers),
            )
        if not self.outside.log.direct:
            await self.outside.log.back(min(BROKER_WITHIN_S, max(0.0, last - now())))

    async def _close(self) -> None:
        await self.outside.log.broker.stop()
        await self.outside.log.spool.close()
        await self.outside.engines.stop()
        await self.outside.reads.stop()
        await self.outside.ledger.stop()
        if self.edge.limits is not None:
            await self.edge.limits.stop()
        await self.outside.buckets.stop()
        await self.outside.heads_client.aclose()

    def _describe(self) -> None:
        self.outside.log.show()
        metrics.BODY_BYTES.set_function(lambda: self.edge.held_bytes)
        self.health.checks.update(
            {
                "log": self.outside.log.failure,
                "heads": self._heads,
                "engines": self.outside.engines.failure,
            }
        )
        self.health.facts.update(
            {
                "in_flight_body_bytes": lambda: self.edge.held_bytes,
                "events_waiting_for_acknowledgement": lambda: self.outside.log.broker.waiting,
                "log": self.outside.log.describe,
                "engines": self.outside.engines.rows,
                "scenarios_not_ready": lambda: self.scenarios.handlers.table.damaged,
                "following_releases": self.outside.tail.listening.is_set,
            }
        )

    async def _heads(self) -> str | None:
        try:
            await self.scenarios.handlers.heads.scenarios()
        except Unavailable as error:
            return str(error)
        return (
            None if self.scenarios.handlers.table.filled else "the release heads were not read yet"
        )
