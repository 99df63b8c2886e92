"""Composition: settings -> adapters -> handlers -> routes -> application."""

from collections.abc import Callable
from datetime import datetime, timedelta

from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from fastapi import FastAPI
from faststream.kafka import KafkaBroker, KafkaRoute, KafkaRouter

from reefcommon import topics
from reefcommon.events import utc_now
from reefcommon.settings import SystemSettings
from reefkit.bus import EventPublisher, KafkaPublisher, kafka_broker, route
from reefkit.ops import Health, ops_routes
from reefkit.service import Service, Work
from services.experience.clickhouse import (
    ClickHouseAudit,
    ClickHouseReads,
    ClickHouseStore,
    Database,
)
from services.experience.domain.parking import Parking
from services.experience.domain.sessions import SessionBook
from services.experience.handlers import Handlers
from services.experience.http import audit_routes, key_routes, read_routes, unavailable
from services.experience.kafka import KafkaDeadLetters, KafkaHandled, decode
from services.experience.lifecycle import Lifecycle, Progress
from services.experience.ports import BodyStore, DeadLetters, ExperienceStore
from services.experience.settings import Settings

SERVICE = "experience"
SOURCES = (topics.INFERENCES, topics.FEEDBACK, topics.TRAINING, topics.RELEASES)


def routes(handlers: Handlers, settings: Settings) -> list[KafkaRoute]:
    return [
        route(
            handlers.on_events,
            *SOURCES,
            group=SERVICE,
            decoder=decode,
            batch=True,
            max_records=settings.batch_records,
            batch_timeout_ms=settings.batch_wait_ms,
            fetch_max_wait_ms=500,  # clients ask for what they have just recorded
            # Partition n of each topic goes to the same process: a report meets its records there.
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
    ]


def build_handlers(
    settings: Settings,
    *,
    store: ExperienceStore,
    publisher: EventPublisher,
    dead: DeadLetters,
    bodies: BodyStore,
    now: Callable[[], datetime] = utc_now,
) -> Handlers:
    return Handlers(
        store=store,
        publisher=publisher,
        dead=dead,
        bodies=bodies,
        book=SessionBook(max_open=settings.max_open_sessions, ttl_s=settings.session_ttl_s),
        parking=Parking(limit=settings.max_parked),
        now=now,
        report_wait=timedelta(seconds=settings.report_wait_s),
        session_ttl_s=settings.session_ttl_s,
        max_open_sessions=settings.max_open_sessions,
    )


def subscribe(broker: KafkaBroker, handlers: Handlers, settings: Settings) -> None:
    broker.include_router(KafkaRouter(handlers=routes(handlers, settings)))


def open_store(system: SystemSettings) -> Database:
    """Open the ClickHouse server that is named, else chDB under the state directory."""
    return (
        Database.server(system.clickhouse_url)
        if system.clickhouse_url
        else Database.embedded(system.state_dir / "chdb")
    )


def build(
    system: SystemSettings, settings: Settings, *, database: Database | None = None
) -> FastAPI:
    """Build the whole service, on `database` or on the store that the settings name."""
    broker = kafka_broker(system, SERVICE)
    database = database or open_store(system)
    bodies = broker.guard.bodies
    handlers = build_handlers(
        settings,
        store=ClickHouseStore(database),
        publisher=KafkaPublisher(broker),
        dead=KafkaDeadLetters(broker.guard),
        bodies=bodies,
    )
    subscribe(broker, handlers, settings)
    life = Lifecycle(database, handlers, broker, settings)
    health = Health(
        SERVICE,
        checks={"store": life.check_store, "progress": Progress(broker).check},
        facts={
            "store": lambda: database.where,
            "kept_days": lambda: settings.kept_days,
            "sessions": handlers.session_facts,
            "parked_reports": lambda: len(handlers.parking),
            "oldest_parked_report": handlers.waiting_facts,
        },
        broker=broker,
    )
    service = Service(
        health,
        broker,
        prepare=life.prepare,
        tasks=(Work("sweep", life.sweep),),
        close=(database.close,),
    )
    reads = ClickHouseReads(database)
    handled = KafkaHandled(broker, system.kafka_bootstrap)
    app = FastAPI(title="Reef experience", lifespan=service.lifespan)
    app.middleware("http")(unavailable)
    app.include_router(read_routes(reads, bodies))
    app.include_router(key_routes(reads, handled, bodies))
    app.include_router(audit_routes(ClickHouseAudit(database)))
    app.router.routes.extend(ops_routes(health))
    return app
