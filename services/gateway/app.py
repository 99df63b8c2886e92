"""Composition: settings -> adapters -> handlers -> application.

Production and tests differ in the ports alone.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from reefcommon import config as serve_config
from reefcommon.config import ServeConfig
from reefcommon.events import Sampling, utc_now
from reefcommon.releases import ReleaseHeads
from reefcommon.settings import SystemSettings
from reefkit.bodies import FilesystemBodies
from reefkit.ops import Health
from reefkit.redis_heads import RedisReleaseHeads, connect
from reefkit.redis_rotation import RedisRotation
from services.gateway.control.app import control_app
from services.gateway.control.desk import Desk
from services.gateway.control.experience import ExperienceReads
from services.gateway.control.fanout import Fanout
from services.gateway.control.rejections import Rejections
from services.gateway.control.scenarios import Scenarios
from services.gateway.control.status import SystemStatus
from services.gateway.domain.access import Access
from services.gateway.domain.head import HeadLimits
from services.gateway.domain.memory import Memory
from services.gateway.domain.recent import Recent
from services.gateway.domain.routing import RoutingTable
from services.gateway.edge import tokens
from services.gateway.edge.asgi import Edge
from services.gateway.edge.bodies import BodyReader
from services.gateway.edge.limits import Buckets, Limits
from services.gateway.edge.redis_buckets import RedisBuckets
from services.gateway.edge.stopping import Stopping
from services.gateway.exchange.inference import Inference
from services.gateway.exchange.intake import Intake
from services.gateway.exchange.recording import Recorder
from services.gateway.exchange.tracing import Spans
from services.gateway.handlers import Handlers
from services.gateway.keys.known import Keys
from services.gateway.keys.redis import RedisKeyStore
from services.gateway.keys.repeats import Repeats
from services.gateway.lifecycle import Adapters, Lifecycle
from services.gateway.log.durable import DurableLog
from services.gateway.log.kafka import KafkaRecordLog
from services.gateway.log.release_tail import ReleaseTail
from services.gateway.log.spool import Spool
from services.gateway.ports import BodyStore, CommandBus, Engines, KeyStore, Reads, RecordLog
from services.gateway.settings import Settings
from services.gateway.upstream.engines import HttpEngines
from services.gateway.upstream.rotation import RotationFollower

SERVICE = "gateway"


@dataclass(frozen=True)
class Ports:
    """Everything outside of the process."""

    log: RecordLog
    bodies: BodyStore
    engines: Engines
    heads: ReleaseHeads
    ledger: KeyStore
    reads: Reads
    commands: CommandBus
    buckets: Buckets | None = None
    engine_rows: Callable[[], list[dict[str, Any]]] = list
    waiting_since: Callable[[], float | None] = lambda: None


@dataclass(frozen=True)
class Gateway:
    """The parts of a gateway, put together."""

    edge: Edge
    handlers: Handlers
    scenarios: Scenarios
    fanout: Fanout
    rejections: Rejections
    health: Health

    @property
    def app(self) -> ASGIApp:
        """The application for uvicorn."""
        return self.edge


def assemble(
    settings: Settings,
    system: SystemSettings,
    ports: Ports,
    *,
    access: Access,
    config: ServeConfig | None,
    lifespan: Callable[["Gateway"], Callable[[Any], AbstractAsyncContextManager[None]]],
    spans: Spans | None = None,
) -> Gateway:
    """A gateway on any ports."""
    table, recent, fanout = RoutingTable(), Recent(), Fanout()
    keys = Keys(ports.ledger, ports.reads, settings.key_lease_s, ports.waiting_since)
    handlers = Handlers(
        ports.log,
        table,
        ports.heads,
        ports.ledger,
        keys,
        ports.reads,
        ports.commands,
        recent,
        utc_now,
        settings.command_timeout_s,
    )
    scenarios = Scenarios(handlers, config)
    intake = Intake(
        access,
        table,
        system.model_name,
        scenarios.create_for_traffic,
        settings.implicit_scenarios,
        settings.model_aliases,
    )
    inference = Inference(
        ports.engines,
        Recorder(ports.log, ports.bodies, recent),
        spans,
        settings.max_answer_bytes,
        (config.serving.sampling if config is not None else Sampling()).model_dump(),
    )
    health = Health(SERVICE)
    services = {
        "experience": system.experience_url,
        "trainer": system.trainer_url,
        "harness": system.harness_url,
        "evaluator": system.evaluator_url,
        "publisher": system.publisher_url,
    }
    status = SystemStatus(health, table, services, ports.engine_rows, scenarios.learns)
    rejections = Rejections()
    desk = Desk(intake, scenarios, ports.reads, status, fanout, rejections, int(health.started_at))
    edge = Edge(
        intake=intake,
        inference=inference,
        repeats=Repeats(
            inference,
            ports.ledger,
            keys,
            lease_s=settings.key_lease_s,
            wait_s=settings.read_timeout_s,
        ),
        handlers=handlers,
        bodies=BodyReader(settings.max_body_bytes, settings.body_timeout_s),
        memory=Memory(settings.memory_budget_bytes),
        stopping=Stopping(settings.drain_s),
        head=HeadLimits(settings.max_headers, settings.max_header_bytes),
        limits=Limits(ports.buckets) if access.limited else None,
    )
    gateway = Gateway(edge, handlers, scenarios, fanout, rejections, health)
    edge.control = control_app(desk, health, lifespan(gateway))
    return gateway


def adapters(system: SystemSettings, settings: Settings) -> Adapters:
    """Return the real outside systems, not yet connected."""
    bodies = FilesystemBodies(system.state_dir / "bodies")
    broker = KafkaRecordLog(
        system.kafka_bootstrap,
        bodies,
        idempotence=system.kafka_idempotence,
        linger_ms=settings.linger_ms,
        ack_timeout_s=settings.ack_timeout_s,
    )
    spool = Spool(system.state_dir / SERVICE / "spool", budget_bytes=settings.spool_budget_bytes)
    engines = HttpEngines(
        system.engines,
        api_key=system.engine_api_key,
        connect_timeout_s=settings.connect_timeout_s,
        read_timeout_s=settings.read_timeout_s,
        max_answer_bytes=settings.max_answer_bytes,
    )
    heads_client = connect(system.redis_url)
    return Adapters(
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


def build(system: SystemSettings, settings: Settings, spans: Spans | None = None) -> Gateway:
    """Return the gateway on the real systems."""
    outside = adapters(system, settings)
    ports = Ports(
        log=outside.log,
        bodies=FilesystemBodies(system.state_dir / "bodies"),
        engines=outside.engines,
        heads=RedisReleaseHeads(outside.heads_client),
        ledger=outside.ledger,
        reads=outside.reads,
        commands=outside.tail,
        buckets=outside.buckets,
        engine_rows=outside.engines.rows,
        waiting_since=outside.log.waiting_since,
    )

    def lifespan(made: Gateway) -> Callable[[Any], AbstractAsyncContextManager[None]]:
        return Lifecycle(
            made.edge, made.scenarios, made.fanout, made.rejections, made.health, settings, outside
        ).span

    return assemble(
        settings,
        system,
        ports,
        access=tokens.read(settings.tokens_file, settings.limit),
        config=serve_config.load(system.config) if system.config is not None else None,
        lifespan=lifespan,
        spans=spans,
    )
