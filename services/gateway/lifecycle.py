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
from reefcommon.settings import SystemSettings
from reefkit.background import cancel, run_forever
from reefkit.bodies import FilesystemBodies
from reefkit.redis_heads import RedisReleaseHeads, connect
from reefkit.redis_rotation import RedisRotation
from services.gateway import metrics
from services.gateway.composition import SERVICE, Gateway, Ports
from services.gateway.control.experience import ExperienceReads
from services.gateway.edge.redis_buckets import RedisBuckets
from services.gateway.keys.redis import RedisKeyStore
from services.gateway.log.durable import DurableLog
from services.gateway.log.kafka import KafkaRecordLog
from services.gateway.log.release_tail import ReleaseTail
from services.gateway.log.spool import Spool
from services.gateway.settings import Settings
from services.gateway.upstream.engines import HttpEngines
from services.gateway.upstream.rotation import RotationFollower

log = structlog.get_logger()

# The longest wait for the broker at start and stop; events that it has not taken stay on disk.
BROKER_WITHIN_S = 2.0


@dataclass(frozen=True)
class Adapters:
    """The outside systems of a running gateway."""

    bodies: FilesystemBodies
    log: DurableLog
    engines: HttpEngines
    tail: ReleaseTail
    ledger: RedisKeyStore
    buckets: RedisBuckets
    reads: ExperienceReads
    rotation: RotationFollower
    heads_client: Redis

    @classmethod
    def of(cls, system: SystemSettings, settings: Settings) -> "Adapters":
        """Build the adapters. None is connected yet."""
        bodies = FilesystemBodies(system.state_dir / "bodies")
        broker = KafkaRecordLog(
            system.kafka_bootstrap,
            bodies,
            idempotence=system.kafka_idempotence,
            linger_ms=settings.linger_ms,
            ack_timeout_s=settings.ack_timeout_s,
        )
        spool = Spool(
            system.state_dir / SERVICE / "spool", budget_bytes=settings.spool_budget_bytes
        )
        engines = HttpEngines(
            system.engines,
            api_key=system.engine_api_key,
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.read_timeout_s,
            max_answer_bytes=settings.max_answer_bytes,
        )
        heads_client = connect(system.redis_url)
        return cls(
            bodies=bodies,
            log=DurableLog(
                broker,
                spool,
                ready_bytes=settings.spool_ready_bytes,
                ready_age_s=settings.spool_ready_age_s,
            ),
            engines=engines,
            tail=ReleaseTail(system.kafka_bootstrap, broker, bodies),
            ledger=RedisKeyStore(system.redis_url, ttl_s=settings.key_ttl_s),
            buckets=RedisBuckets(system.redis_url),
            reads=ExperienceReads(system.experience_url),
            rotation=RotationFollower(RedisRotation(heads_client), system.engines, engines.nodes),
            heads_client=heads_client,
        )

    def ports(self) -> Ports:
        """Return the adapters as ports."""
        return Ports(
            log=self.log,
            bodies=self.bodies,
            engines=self.engines,
            heads=RedisReleaseHeads(self.heads_client),
            ledger=self.ledger,
            reads=self.reads,
            commands=self.tail,
            buckets=self.buckets,
            engine_rows=self.engines.rows,
            waiting_since=self.log.waiting_since,
        )


@dataclass(frozen=True)
class Lifecycle:
    """The parts that are started and stopped around the application."""

    gateway: Gateway
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
        await self.gateway.scenarios.snapshot()
        with contextlib.suppress(Unavailable):
            # Before the first request: every key from now on is remembered.
            await outside.ledger.since()
        await asyncio.gather(outside.engines.look(), outside.rotation.look())
        await outside.log.back(BROKER_WITHIN_S)
        tasks += [
            run_forever(
                outside.tail.run(
                    self.gateway.scenarios.snapshot,
                    self._on_news,
                    every_s=self.settings.snapshot_s,
                    on_past=self.gateway.rejections.hear,
                ),
                "releases",
            ),
            run_forever(outside.engines.watch(), "engines"),
            run_forever(outside.rotation.follow(), "rotation"),
        ]
        log.info(
            "gateway_started",
            engines=len(outside.engines.nodes),
            scenarios=self.gateway.scenarios.handlers.table.scenarios(),
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
            await self.gateway.scenarios.handlers.on_release(event)
        self.gateway.rejections.hear(event)
        if not isinstance(event, ServingSynced):
            self.gateway.fanout.tell(event)

    async def _drain(self) -> None:
        # uvicorn leaves keyed exchanges whose clients left, records of exchanges that were cut off,
        # and the spool
        now, stopping, leftovers = (
            asyncio.get_running_loop().time,
            self.gateway.edge.stopping,
            self.gateway.edge.inference.recorder.leftovers,
        )
        deadline = stopping.begin()
        exchanges = await self.gateway.edge.repeats.drain(deadline)
        # The exchanges that are cut off need this long to be recorded.
        last = max(deadline, now()) + BROKER_WITHIN_S
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
        if self.gateway.edge.limits is not None:
            await self.gateway.edge.limits.stop()
        await self.outside.buckets.stop()
        await self.outside.heads_client.aclose()

    def _describe(self) -> None:
        self.outside.log.show()
        metrics.BODY_BYTES.set_function(lambda: self.gateway.edge.held_bytes)
        self.gateway.health.checks.update(
            {
                "log": self.outside.log.failure,
                "heads": self._heads,
                "engines": self.outside.engines.failure,
            }
        )
        self.gateway.health.facts.update(
            {
                "in_flight_body_bytes": lambda: self.gateway.edge.held_bytes,
                "events_waiting_for_acknowledgement": lambda: self.outside.log.broker.waiting,
                "log": self.outside.log.describe,
                "engines": self.outside.engines.rows,
                "scenarios_not_ready": lambda: self.gateway.scenarios.handlers.table.damaged,
                "following_releases": self.outside.tail.listening.is_set,
            }
        )

    async def _heads(self) -> str | None:
        handlers = self.gateway.scenarios.handlers
        try:
            await handlers.heads.scenarios()
        except Unavailable as error:
            return str(error)
        return None if handlers.table.filled else "the release heads were not read yet"
