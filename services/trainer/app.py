"""Composition root of the trainer: settings -> adapters -> handlers and loops -> routing table -> operations endpoint."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from faststream.kafka import KafkaBroker, KafkaRouter
from starlette.applications import Starlette

from reefcommon import config, topics
from reefcommon.config import ServeConfig
from reefcommon.errors import BadConfig
from reefcommon.evaluation import choose
from reefcommon.events import utc_now
from reefcommon.recipe import WeightRecipe, load_recipe
from reefcommon.releases import ReleaseHeads
from reefcommon.settings import SystemSettings
from reefkit.artifacts.cache import FetchedTrees
from reefkit.artifacts.selection import open_artifact_store
from reefkit.background import Periodic, cancel, run_forever
from reefkit.bus import KafkaPublisher, kafka_broker, route
from reefkit.ops import Health, ops_app
from reefkit.redis_heads import RedisReleaseHeads, connect
from reefkit.rejected_contents import Rejected
from reefkit.startup import Start
from services.trainer.child import ChildProcess
from services.trainer.domain import Binding
from services.trainer.filesystem import DirectoryCheckpoints
from services.trainer.handlers import Handlers, StepProcess
from services.trainer.learning import Learning, Patience, Ports
from services.trainer.ledger import SqliteLedger
from services.trainer.retention import Retention
from services.trainer.settings import Settings

log = structlog.get_logger()
SERVICE = "trainer"


def weight_bindings(served: ServeConfig) -> tuple[Binding, ...]:
    """The bindings of a `serve.yaml` whose recipe evolves weights; the others belong to other services. Raises BadConfig."""
    loaded = ((binding, load_recipe(binding.recipe, binding.knobs)) for binding in served.reef)
    return tuple(
        Binding(
            item.scenario,
            item.recipe,
            recipe,
            holds_out=choose(served, item.scenario, item.recipe).withholds_samples,
        )
        for item, recipe in loaded
        if isinstance(recipe, WeightRecipe)
    )


def build(
    bindings: tuple[Binding, ...],
    ledger: SqliteLedger,
    ports: Ports,
    process: Callable[[Binding], StepProcess],
    patience: Patience,
) -> tuple[Handlers, tuple[Learning, ...]]:
    """The service on its ports: the same function for production and tests."""
    loops = tuple(Learning(binding, ports, process(binding), patience) for binding in bindings)
    for loop in loops:
        if (last := ledger.last(loop.binding.key)) is not None:
            loop.show(last)

    def wake(scenario: str) -> None:
        for loop in loops:
            if loop.binding.scenario == scenario:
                loop.arrived.set()

    return Handlers(bindings=bindings, inbox=ledger, jobs=ledger, heads=ledger, wake=wake), loops


def routes(handlers: Handlers) -> KafkaRouter:
    """The routing table."""
    return KafkaRouter(
        handlers=(
            route(handlers.on_publication, topics.RELEASES, group=f"{SERVICE}-releases"),
            route(handlers.on_sample, topics.SAMPLES, group=f"{SERVICE}-samples"),
        )
    )


async def seed(heads: ReleaseHeads, bindings: tuple[Binding, ...], ledger: SqliteLedger) -> None:
    """What serves now, before the release chain has been read. Raises Unavailable."""
    for scenario in {binding.scenario for binding in bindings}:
        if (release := await heads.head(scenario)) is not None:
            ledger.advance(release)


def _process(
    system: SystemSettings, settings: Settings, home: Path
) -> Callable[[Binding], StepProcess]:
    def child(binding: Binding) -> StepProcess:
        if system.model_path is None:
            raise BadConfig(
                "REEF_MODEL_PATH is not set: the trainer needs the base model as a Hugging Face directory"
            )
        log_path = home / "logs" / f"{binding.scenario}-{binding.recipe.name}.log"
        return ChildProcess(
            binding,
            system.model_path,
            log_path,
            timeout_s=settings.step_timeout_s,
            niceness=settings.niceness,
        )

    return child


def application(system: SystemSettings, settings: Settings) -> Starlette:
    """The service with its real adapters. Raises BadConfig where the deployment's file cannot be used."""
    served = config.load(system.config) if system.config else None
    bindings = weight_bindings(served) if served else ()
    home = system.state_dir.resolve() / SERVICE
    ledger = SqliteLedger(home / "ledger.sqlite")
    broker = kafka_broker(system, SERVICE)
    ports = Ports(
        inbox=ledger,
        jobs=ledger,
        heads=ledger,
        checkpoints=DirectoryCheckpoints(home / "states"),
        artifacts=open_artifact_store(system),
        publisher=KafkaPublisher(broker),
        clock=utc_now,
        adapters=FetchedTrees(home / "adapters"),
        kept_states=settings.kept_states,
    )
    patience = Patience(settings.first_delay_s, settings.max_delay_s, settings.max_attempts)
    handlers, loops = build(bindings, ledger, ports, _process(system, settings, home), patience)
    broker.include_router(routes(handlers))
    health = Health(SERVICE, broker=broker)
    health.facts["bindings"] = lambda: {loop.binding.key: _facts(loop, ledger) for loop in loops}
    return ops_app(
        health,
        partial(_living, Parts(system, settings, bindings, ledger, broker, loops, health, ports)),
    )


@dataclass(frozen=True)
class Parts:
    """What lives as long as the process."""

    system: SystemSettings
    settings: Settings
    bindings: tuple[Binding, ...]
    ledger: SqliteLedger
    broker: KafkaBroker
    loops: tuple[Learning, ...]
    health: Health
    ports: Ports

    def retention(self, heads: ReleaseHeads) -> Periodic[dict[str, int]]:
        """What removes what was kept long enough."""
        ports, every_s = self.ports, self.settings.retention_every_s
        rejected = Rejected(self.ledger, ports.artifacts, heads, ports.storing)
        retention = Retention(
            self.bindings,
            self.ledger,
            ports.checkpoints,
            ports.adapters,
            rejected,
            self.settings.settled_kept_s,
            self.settings.rejected_kept_s,
            ports.clock,
        )
        return Periodic("retention", retention.round, every_s, first_after_s=every_s)


@asynccontextmanager
async def _living(parts: Parts, _app: Any) -> AsyncIterator[None]:
    """Start consuming and learning; on the way out end the loops first, then the broker, then the ledger."""
    redis = connect(parts.system.redis_url)
    heads = RedisReleaseHeads(redis)
    start = Start(parts.broker, first=lambda: seed(heads, parts.bindings, parts.ledger))
    start.begin()
    tasks = [run_forever(start.after(loop.run), loop.binding.key) for loop in parts.loops]
    parts.health.checks["started"] = start.check
    parts.health.checks["learning"] = lambda: _check(parts.loops)
    tasks.append(run_forever(start.after(parts.retention(heads).run), "retention"))
    log.info("trainer_started", bindings=[binding.key for binding in parts.bindings])
    try:
        yield
    finally:
        await start.cancel()
        await cancel(tasks)
        await parts.broker.stop()
        await redis.aclose()
        parts.ledger.close()
        log.info("trainer_stopped")


def _facts(loop: Learning, ledger: SqliteLedger) -> dict[str, Any]:
    key = loop.binding.key
    return {
        "state": loop.doing,
        "step": loop.step,
        "samples": ledger.counts(key),
        "refused": ledger.refusals(key),
        "last_metrics": loop.last_metrics,
        "last_error": loop.last_error,
        "last_error_at": loop.last_error_at,
    }


async def _check(loops: tuple[Learning, ...]) -> str | None:
    return (
        "; ".join(f"{loop.binding.key}: {loop.failing}" for loop in loops if loop.failing) or None
    )
