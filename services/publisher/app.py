"""Composition root of the publisher: settings -> adapters -> handlers -> routes -> application."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import structlog
from aiokafka.errors import KafkaError
from faststream.kafka import KafkaBroker, KafkaRouter
from redis.asyncio import Redis
from starlette.applications import Starlette

from reefcommon import topics
from reefcommon.artifacts import ArtifactStore
from reefcommon.config import ServeConfig, load
from reefcommon.errors import Unavailable
from reefcommon.events import utc_now
from reefcommon.settings import SystemSettings
from reefkit.artifacts.selection import open_artifact_store
from reefkit.background import Rounds, end, lasting
from reefkit.bus import EventPublisher, KafkaPublisher, kafka_broker, route
from reefkit.ops import Health, ops_app
from reefkit.redis_heads import RedisReleaseHeads, connect
from reefkit.redis_rotation import RedisRotation
from reefkit.serving import HttpServingNode, WeightNode
from services.publisher.fleet import Fleet
from services.publisher.full_weights import FullWeights
from services.publisher.handlers import Handlers
from services.publisher.kafka_log import KafkaReleaseLog
from services.publisher.publication import Publication
from services.publisher.redis_works import RedisWorks
from services.publisher.settings import Settings
from services.publisher.upkeep import Upkeep, patiently

log = structlog.get_logger()

SERVICE = "publisher"


def routes(handlers: Handlers) -> KafkaRouter:
    """The arrivals of this service. Commands have a group of their own: a rollback does not wait for a verdict's staging."""
    return KafkaRouter(
        handlers=(
            route(handlers.on_evaluated, topics.EVALUATIONS, group=f"{SERVICE}-evaluations"),
            route(handlers.on_command, topics.COMMANDS, group=f"{SERVICE}-commands"),
        )
    )


def build(
    config: ServeConfig,
    system: SystemSettings,
    settings: Settings,
    redis: Redis,
    store: ArtifactStore,
    nodes: tuple[WeightNode, ...],
    events: EventPublisher,
    *,
    now: Callable[[], datetime] = utc_now,
) -> Upkeep:
    """Everything but the outside systems, which are given."""
    heads = RedisReleaseHeads(redis)
    works = RedisWorks(redis, kept_s=settings.work_kept_s)
    rotation = RedisRotation(redis)
    way = settings.weight_transfer
    full = (
        None
        if way == "off"
        else FullWeights(
            way, settings.weight_transfer_host, settings.weight_step_within_s, rotation
        )
    )
    fleet = Fleet(
        nodes=nodes,
        store=store,
        staging=system.state_dir / "staging",
        base_model=system.model_name,
        rotation=rotation,
        stage_within_s=settings.stage_within_s,
        full=full,
        base_path=system.model_path,
    )
    publication = Publication(heads, works, fleet, events, now, config.serving.resident_adapters)
    handlers = Handlers(config, heads, works, publication, events, now)
    return Upkeep(
        handlers,
        publication,
        fleet,
        heads,
        KafkaReleaseLog(system.kafka_bootstrap),
        config.all_scenarios,
    )


def application(system: SystemSettings, settings: Settings) -> Starlette:
    """The service as one ASGI application; its lifespan starts and stops the consumers and the upkeep. Raises BadConfig."""
    config = load(system.config or Path("serve.yaml"))
    redis, store = connect(system.redis_url), open_artifact_store(system)
    broker = kafka_broker(system, SERVICE)
    health = Health(SERVICE, broker=broker)

    @asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        async with aiohttp.ClientSession() as session:
            nodes = tuple(
                HttpServingNode(url, session, api_key=system.engine_api_key)
                for url in system.engines
            )
            upkeep = build(config, system, settings, redis, store, nodes, KafkaPublisher(broker))
            broker.include_router(routes(upkeep.handlers))
            rounds = Rounds("upkeep", upkeep.round, settings.reconcile_every_s)
            show(health, upkeep, rounds, broker)
            running = lasting(work(broker, upkeep, rounds), rounds.name)
            yield
            await end((running,))
            await broker.stop()
        await redis.aclose()

    return ops_app(health, lifespan)


async def work(broker: KafkaBroker, upkeep: Upkeep, rounds: Rounds[None]) -> None:
    """Nodes are given what the heads say from the first moment on, whether or not the broker answers. Events are taken once the heads are
    restored: a verdict needs a head to be compared with."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(rounds.run())
        await patiently(lambda: answered(broker.connect))
        await upkeep.start()
        tasks.create_task(patiently(upkeep.handlers.resume))
        await patiently(lambda: answered(broker.start))


async def answered(call: Callable[[], Awaitable[Any]]) -> None:
    """Raises Unavailable where the broker does not answer."""
    try:
        await call()
    except (KafkaError, OSError) as error:
        raise Unavailable(f"the broker does not answer: {error!r}") from error


def show(health: Health, upkeep: Upkeep, rounds: Rounds[None], broker: KafkaBroker) -> None:
    """What `/readyz` and `/status` say."""

    async def restored() -> str | None:
        if not upkeep.ready:
            return "the release heads are being restored from the log"
        return (
            None
            if upkeep.synced
            else "no serving node holds the head releases yet; they are being loaded"
        )

    async def listening() -> str | None:
        return (
            None
            if broker.running
            else "verdicts and commands are not taken yet: the consumer groups are being joined"
        )

    health.checks.update(restored=restored, upkeep=rounds.check, listening=listening)
    health.facts.update(
        nodes=lambda: {
            node.url: upkeep.apart.get(node.url, "in rotation") for node in upkeep.fleet.nodes
        },
        scenarios=lambda: list(upkeep.scenarios),
        damaged=lambda: upkeep.damaged,
    )
