"""Composition: settings -> adapters -> handlers -> routes -> application."""

import asyncio
from collections.abc import Sequence

from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from fastapi import FastAPI
from faststream.kafka import KafkaRouter

from reefcommon import topics
from reefcommon.settings import SystemSettings
from reefkit.bus import SOON_MS, KafkaPublisher, kafka_broker, route
from reefkit.ops import Health, ops_routes
from reefkit.service import BackgroundTask, Service
from services.experience import clickhouse
from services.experience.handlers import Handlers
from services.experience.http import audit_routes, errors_as_answers, key_routes, read_routes
from services.experience.kafka import KafkaDeadLetters, KafkaHandled, decode
from services.experience.lifecycle import Lifecycle, Progress
from services.experience.ports import Arrival
from services.experience.settings import Settings
from services.experience.wants import Wants

SERVICE = "experience"
SOURCES = (topics.INFERENCES, topics.FEEDBACK, topics.SIGNALS, topics.TRAINING, topics.RELEASES)


def routes(handlers: Handlers, settings: Settings) -> KafkaRouter:
    """Build the routing table: all topics go through the same batches."""

    async def on_events(arrivals: Sequence[Arrival]) -> None:
        await handlers.on_events(arrivals)
        # An insert costs as much as a hundred rows: events that trickle in gather meanwhile. The
        # offsets follow after the pause, and a batch of a backlog makes none.
        if len(arrivals) < settings.batch_records // 10:
            await asyncio.sleep(settings.batch_pause_ms / 1000)

    events = route(
        on_events,
        *SOURCES,
        group=SERVICE,
        decoder=decode,
        fetch_max_wait_ms=SOON_MS,  # clients ask for what they have just recorded
        batch=True,
        max_records=settings.batch_records,
        batch_timeout_ms=settings.batch_wait_ms,
        # Partition n of each topic goes to the same process: a report meets its records there.
        partition_assignment_strategy=(RangePartitionAssignor,),
    )
    return KafkaRouter(handlers=(events,))


def build(
    system: SystemSettings, settings: Settings, *, database: clickhouse.Database | None = None
) -> FastAPI:
    """Build the whole service, on `database` or on the store that the settings name."""
    broker = kafka_broker(system, SERVICE)
    database = database or clickhouse.Database.open(system)
    bodies, store = broker.guard.bodies, clickhouse.ClickHouseStore(database)
    dead = KafkaDeadLetters(broker.guard)
    wants = Wants.read(system.config)
    handlers = Handlers(settings, store, KafkaPublisher(broker), dead, bodies, wants=wants)
    broker.include_router(routes(handlers, settings))
    life = Lifecycle(database, handlers, broker, settings)
    health = Health(SERVICE, broker=broker, facts=life.facts())
    health.checks.update(store=life.check_store, progress=Progress(broker).check)
    tasks, close = (BackgroundTask("sweep", life.sweep),), (database.close,)
    service = Service(health, broker, prepare=life.prepare, tasks=tasks, close=close)
    reads = clickhouse.ClickHouseReads(database)
    handled = KafkaHandled(broker, system.kafka_bootstrap)
    app = FastAPI(title="Reef experience", lifespan=service.lifespan)
    app.middleware("http")(errors_as_answers)
    app.include_router(read_routes(reads, bodies))
    app.include_router(key_routes(reads, handled, bodies))
    app.include_router(audit_routes(clickhouse.ClickHouseAudit(database)))
    app.router.routes.extend(ops_routes(health))
    return app
