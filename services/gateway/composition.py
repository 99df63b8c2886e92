"""Composition of a gateway on any ports. Production and tests differ in the ports alone."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from starlette.types import ASGIApp

from reefcommon.artifacts import ArtifactStore
from reefcommon.config import ServeConfig
from reefcommon.config_sections import HarnessSection
from reefcommon.config_serving import ServingSection
from reefcommon.releases import ReleaseHeads
from reefcommon.settings import SystemSettings
from reefkit.ops import Health
from services.gateway.control.app import Lifespan, control_app
from services.gateway.control.desk import Desk
from services.gateway.control.fanout import Fanout
from services.gateway.control.proposals import Proposals
from services.gateway.control.rejections import Rejections
from services.gateway.control.scenarios import Scenarios
from services.gateway.control.status import SystemStatus
from services.gateway.domain.access import Access
from services.gateway.domain.headers import HeaderLimits
from services.gateway.domain.heads import HeadTable
from services.gateway.domain.memory import Memory
from services.gateway.domain.recent import Recent
from services.gateway.edge.asgi import Edge
from services.gateway.edge.bodies import BodyReader
from services.gateway.edge.limits import Buckets, Limits
from services.gateway.edge.stopping import Stopping
from services.gateway.exchange.inference import Inference
from services.gateway.exchange.intake import Intake
from services.gateway.exchange.recording import Recorder
from services.gateway.exchange.tracing import Spans
from services.gateway.handlers import Handlers
from services.gateway.keys.known import Keys
from services.gateway.keys.repeats import Repeats
from services.gateway.ports import BodyStore, CommandBus, Engines, KeyStore, Reads, RecordLog
from services.gateway.settings import Settings
from services.gateway.upstream.contents import Contents
from services.gateway.upstream.harnesses import Harnesses
from services.gateway.upstream.providers import Provider
from services.gateway.upstream.routing import Routing
from services.gateway.upstream.upstreams import Upstreams

SERVICE = "gateway"
OTHERS = ("experience", "trainer", "harness", "evaluator", "publisher")


@dataclass(frozen=True)
class Ports:
    """Everything outside of the process."""

    log: RecordLog
    bodies: BodyStore
    engines: Engines
    heads: ReleaseHeads
    key_store: KeyStore
    reads: Reads
    commands: CommandBus
    buckets: Buckets | None = None
    artifacts: ArtifactStore | None = None
    providers: Mapping[str, Provider] = field(default_factory=dict)


@dataclass(frozen=True)
class Gateway:
    """The parts of a gateway, put together."""

    edge: Edge
    handlers: Handlers
    scenarios: Scenarios
    fanout: Fanout
    rejections: Rejections
    status: SystemStatus

    @property
    def health(self) -> Health:
        return self.status.health

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
    lifespan: Callable[["Gateway"], Lifespan],
    spans: Spans | None = None,
) -> Gateway:
    """Build a gateway on these ports."""
    table, recent = HeadTable(), Recent()
    keys = Keys(ports.key_store, ports.reads, settings.key_lease_s, ports.log.waiting_since)
    handlers = Handlers(ports.log, table, ports.key_store, keys.find, ports.reads, recent)
    scenarios = Scenarios(ports.heads, table, ports.commands, config, settings.command_timeout_s)
    home, store = system.state_dir / SERVICE / "contents", ports.artifacts
    contents = Contents.of(ports.heads, store, home) if store is not None else None
    section = config.harness if config is not None else HarnessSection()
    serving = config.serving if config is not None else ServingSection()
    routing = scenarios.routing = Routing(ports.heads, contents)
    scenarios.artifacts = ports.artifacts
    upstreams = Upstreams(ports.engines, serving, ports.providers, routing)
    intake = Intake(
        access,
        table,
        system.model_name,
        scenarios.create_for_traffic,
        Harnesses(section, contents),
        routing,
        settings.implicit_scenarios,
        settings.model_aliases,
        tuple(serving.model_map),
    )
    recorder = Recorder(ports.log, ports.bodies, recent)
    inference = Inference(
        upstreams, recorder, spans, settings.max_answer_bytes, serving.sampling.model_dump()
    )
    lease_s, wait_s = settings.key_lease_s, settings.read_timeout_s
    edge = Edge(
        intake=intake,
        inference=inference,
        repeats=Repeats(inference, ports.key_store, keys, lease_s=lease_s, wait_s=wait_s),
        handlers=handlers,
        bodies=BodyReader(settings.max_body_bytes, settings.body_timeout_s),
        memory=Memory(settings.memory_budget_bytes),
        stopping=Stopping(settings.drain_s),
        headers=HeaderLimits(settings.max_headers, settings.max_header_bytes),
        limits=Limits(ports.buckets) if access.limited else None,
    )
    fanout, rejections, health = Fanout(), Rejections(), Health(SERVICE)
    services = {name: getattr(system, f"{name}_url") for name in OTHERS}
    facts = (upstreams.rows, scenarios.learns, ports.heads.pending, ports.heads.held)
    status = SystemStatus(health, table, services, *facts, scenarios.traffic)
    gateway = Gateway(edge, handlers, scenarios, fanout, rejections, status)
    health.facts["not_routed"] = routing.faults
    made_at = int(health.started_at)
    shown = (fanout, rejections, made_at, contents, Proposals(ports.log, ports.key_store))
    desk = Desk(intake, scenarios, ports.reads, status, *shown)
    edge.control = control_app(desk, health, lifespan(gateway))
    return gateway
