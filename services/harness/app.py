"""Composition root of the harness service: settings -> adapters -> handlers -> routing table -> operations endpoint."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog
from faststream.kafka import KafkaRouter
from starlette.applications import Starlette

from reefcommon import config, topics
from reefcommon.artifacts import ArtifactStore
from reefcommon.config import RecipeBinding
from reefcommon.events import utc_now
from reefcommon.harness.admission import CHAT
from reefcommon.harness.tree import HarnessRecipe
from reefcommon.recipe import load_recipe
from reefcommon.settings import SystemSettings
from reefkit.artifacts.cache import FetchedTrees
from reefkit.artifacts.selection import open_artifact_store
from reefkit.background import Periodic, cancel, run_forever
from reefkit.bus import EventPublisher, KafkaPublisher, kafka_broker, route
from reefkit.ops import Health, ops_app
from reefkit.redis_heads import RedisReleaseHeads, connect
from reefkit.rejected_contents import Rejected
from reefkit.startup import Start
from services.harness.domain import Binding
from services.harness.handlers import Handlers
from services.harness.retention import Retention
from services.harness.settings import Settings
from services.harness.sqlite import SqliteLedger
from services.harness.worker import Patience, Worker

log = structlog.get_logger()
SERVICE = "harness"


def harness_bindings(bound: tuple[RecipeBinding, ...]) -> tuple[Binding, ...]:
    """The bindings of a `serve.yaml` whose recipe evolves a harness; the others belong to the trainer. Raises BadConfig."""
    loaded = ((binding, load_recipe(binding.recipe, binding.knobs)) for binding in bound)
    return tuple(
        Binding(item.scenario, item.recipe, recipe)
        for item, recipe in loaded
        if isinstance(recipe, HarnessRecipe)
    )


def build(
    bindings: tuple[Binding, ...],
    ledger: SqliteLedger,
    artifacts: ArtifactStore,
    publisher: EventPublisher,
    *,
    trees: FetchedTrees,
    patience: Patience,
) -> Worker:
    """The service on its ports: the same function for production and tests."""
    arrived = asyncio.Event()
    handlers = Handlers(
        bindings=bindings,
        inbox=ledger,
        jobs=ledger,
        heads=ledger,
        outbox=ledger,
        artifacts=artifacts,
        publisher=publisher,
        adapter=CHAT,
        trees=trees,
        clock=utc_now,
        wake=arrived.set,
        storing=asyncio.Lock(),
    )
    return Worker(handlers, patience, arrived)


def routes(handlers: Handlers) -> KafkaRouter:
    """The routing table."""
    return KafkaRouter(
        handlers=(
            route(handlers.on_publication, topics.RELEASES, group=f"{SERVICE}-releases"),
            route(handlers.on_sample, topics.SAMPLES, group=f"{SERVICE}-samples"),
        )
    )


def application(system: SystemSettings, settings: Settings) -> Starlette:
    """The service with its real adapters. Raises BadConfig where the deployment's file cannot be used."""
    served = config.load(system.config) if system.config else None
    bindings = harness_bindings(served.reef if served else ())
    home = system.state_dir / SERVICE
    ledger = SqliteLedger(home / "ledger.sqlite")
    broker = kafka_broker(system, SERVICE)
    patience = Patience(settings.first_delay_s, settings.max_delay_s, settings.max_attempts)
    trees = FetchedTrees(home / "trees")
    worker = build(
        bindings,
        ledger,
        open_artifact_store(system),
        KafkaPublisher(broker),
        trees=trees,
        patience=patience,
    )
    broker.include_router(routes(worker.handlers))
    health = Health(SERVICE, broker=broker)

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        redis = connect(system.redis_url)
        rejected = Rejected(
            ledger, worker.handlers.artifacts, RedisReleaseHeads(redis), worker.handlers.storing
        )
        retention = Retention(
            bindings,
            ledger,
            trees,
            rejected,
            settings.settled_kept_s,
            settings.rejected_kept_s,
            utc_now,
        )
        rounds = Periodic(
            "retention",
            retention.round,
            settings.retention_every_s,
            first_after_s=settings.retention_every_s,
        )
        start = Start(broker)
        start.begin()
        tasks = (
            run_forever(start.after(worker.run), "worker"),
            run_forever(start.after(rounds.run), rounds.name),
        )
        health.checks["started"] = start.check
        health.checks["worker"] = lambda: _worker_check(worker)
        health.facts["bindings"] = ledger.summary
        health.facts["recipes"] = lambda: [binding.key for binding in bindings]
        log.info("harness_started", bindings=[binding.key for binding in bindings])
        try:
            yield
        finally:
            await start.cancel()
            await cancel(tasks)
            await broker.stop()
            await redis.aclose()
            ledger.close()
            log.info("harness_stopped")

    return ops_app(health, lifespan)


async def _worker_check(worker: Worker) -> str | None:
    return "; ".join(f"{key}: {reason}" for key, reason in worker.failing.items()) or None
