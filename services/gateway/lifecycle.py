"""Start and stop of the gateway."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import structlog
from redis.asyncio import Redis

from reefcommon.config import ServeConfig
from reefcommon.errors import Unavailable
from reefcommon.events import Event, ReleasePublished, ServingSynced
from reefcommon.settings import SystemSettings
from reefkit.artifacts.selection import open_artifact_store
from reefkit.background import Periodic, cancel, run_forever
from reefkit.bodies import FilesystemBodies
from reefkit.redis_heads import RedisReleaseHeads, connect
from reefkit.redis_rotation import RedisRotation
from services.gateway import metrics
from services.gateway.composition import SERVICE, Gateway, Ports
from services.gateway.edge.redis_buckets import RedisBuckets
from services.gateway.keys.redis import RedisKeyStore
from services.gateway.log.durable import DurableLog
from services.gateway.log.kafka import KafkaRecordLog
from services.gateway.log.release_tail import ReleaseTail
from services.gateway.log.spool import Spool
from services.gateway.settings import Settings
from services.gateway.upstream.engines import HttpEngines
from services.gateway.upstream.experience import ExperienceReads
from services.gateway.upstream.rotation import RotationFollower
from services.gateway.upstream.upstreams import providers_of

log = structlog.get_logger()

# The longest wait for the broker at start and stop; events that it has not taken stay on disk.
BROKER_WITHIN_S = 2.0


@dataclass(frozen=True, kw_only=True)
class Adapters(Ports):
    """The outside systems of a running gateway."""

    log: DurableLog
    engines: HttpEngines
    key_store: RedisKeyStore
    reads: ExperienceReads
    commands: ReleaseTail
    buckets: RedisBuckets
    rotation: RotationFollower
    heads_client: Redis

    @classmethod
    def of(
        cls, system: SystemSettings, settings: Settings, config: ServeConfig | None = None
    ) -> "Adapters":
        """Build the adapters. None is connected yet. Raises BadConfig."""
        bodies = FilesystemBodies(system.state_dir / "bodies")
        broker = KafkaRecordLog(
            system.kafka_bootstrap,
            bodies,
            idempotence=system.kafka_idempotence,
            ack_timeout_s=settings.ack_timeout_s,
        )
        spool_dir = system.state_dir / SERVICE / "spool"
        engines = HttpEngines(
            system.engines,
            api_key=system.engine_api_key,
            connect_timeout_s=settings.connect_timeout_s,
            read_timeout_s=settings.read_timeout_s,
            max_answer_bytes=settings.max_answer_bytes,
        )
        client = connect(system.redis_url)
        return cls(
            bodies=bodies,
            log=DurableLog(
                broker,
                Spool(spool_dir, budget_bytes=settings.spool_budget_bytes),
                ready_bytes=settings.spool_ready_bytes,
                ready_age_s=settings.spool_ready_age_s,
            ),
            engines=engines,
            heads=RedisReleaseHeads(client),
            key_store=RedisKeyStore(system.redis_url, ttl_s=settings.key_ttl_s),
            reads=ExperienceReads(system.experience_url),
            commands=ReleaseTail(
                system.kafka_bootstrap, broker, bodies, paced=not system.kafka_idempotence
            ),
            buckets=RedisBuckets(system.redis_url),
            rotation=RotationFollower(RedisRotation(client).apart, system.engines, engines.nodes),
            heads_client=client,
            artifacts=open_artifact_store(system),
            providers=providers_of(
                config,
                connect_timeout_s=settings.connect_timeout_s,
                max_answer_bytes=settings.max_answer_bytes,
            ),
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
        await self.gateway.scenarios.snapshot()
        with contextlib.suppress(Unavailable):
            # Before the first request: every key from now on is remembered.
            await outside.key_store.since()
        await asyncio.gather(outside.engines.poll(), outside.rotation.poll())
        await outside.log.back(BROKER_WITHIN_S)
        tasks += [
            run_forever(
                outside.commands.run(
                    self.gateway.scenarios.snapshot,
                    self._on_event,
                    every_s=self.settings.snapshot_s,
                ),
                "releases",
            ),
            run_forever(Periodic("engines", outside.engines.poll, 2.0).run(), "engines"),
            run_forever(Periodic("rotation", outside.rotation.poll, 1.0).run(), "rotation"),
        ]
        log.info(
            "gateway_started",
            engines=len(outside.engines.nodes),
            scenarios=[head.scenario for head in self.gateway.handlers.table.heads()],
        )
        try:
            yield
        finally:
            await self._drain()
            await cancel(tasks)
            await self._close()
            left, spooled = outside.log.broker.waiting, outside.log.spool.records
            log.info("gateway_stopped", unacknowledged=left, spooled=spooled)

    def _on_event(self, event: Event, new: bool) -> None:
        self.gateway.rejections.hear(event)
        if new and isinstance(event, ReleasePublished):
            self.gateway.handlers.on_release(event)
        if new and not isinstance(event, ServingSynced):
            self.gateway.fanout.tell(event)

    async def _drain(self) -> None:
        # uvicorn leaves keyed exchanges whose clients left, records of exchanges that were cut off,
        # and the spool
        now, edge = asyncio.get_running_loop().time, self.gateway.edge
        stopping, leftovers = edge.stopping, edge.inference.recorder.leftovers
        deadline = stopping.begin()
        exchanges = await edge.repeats.drain(deadline)
        # The exchanges that are cut off need this long to be recorded.
        last = max(deadline, now()) + BROKER_WITHIN_S
        if leftovers:
            await asyncio.wait(leftovers, timeout=last - now())
        if stopping.cut or exchanges or leftovers:
            left = {"requests": stopping.cut, "exchanges": exchanges, "records": len(leftovers)}
            log.warning("drain_deadline_passed", **left)
        if not self.outside.log.direct:
            await self.outside.log.back(min(BROKER_WITHIN_S, max(0.0, last - now())))

    async def _close(self) -> None:
        outside, limits = self.outside, self.gateway.edge.limits
        await outside.log.broker.stop()
        await outside.log.spool.close()
        await outside.engines.stop()
        for provider in outside.providers.values():
            provider.close()
        outside.reads.stop()
        await outside.key_store.stop()
        if limits is not None:
            await limits.stop()
        await outside.buckets.stop()
        await outside.heads_client.aclose()

    def _describe(self) -> None:
        outside, health, memory = self.outside, self.gateway.health, self.gateway.edge.memory
        outside.log.show()
        metrics.BODY_BYTES.set_function(lambda: memory.held)
        health.checks.update(
            log=outside.log.failure, heads=self._heads, engines=outside.engines.failure
        )
        health.facts.update(
            in_flight_body_bytes=lambda: memory.held,
            events_waiting_for_acknowledgement=lambda: outside.log.broker.waiting,
            log=outside.log.describe,
            engines=outside.engines.rows,
            scenarios_not_ready=lambda: self.gateway.handlers.table.damaged,
            following_releases=outside.commands.listening.is_set,
        )

    async def _heads(self) -> str | None:
        try:
            await self.outside.heads.scenarios()
        except Unavailable as error:
            return str(error)
        return None if self.gateway.handlers.table.filled else "the release heads were not read yet"
