"""Composition root of the evaluator: settings -> adapters -> handlers -> routes -> application."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import structlog
from faststream.kafka import KafkaRouter
from redis.asyncio import Redis
from starlette.applications import Starlette

from reefcommon import topics
from reefcommon.artifacts import ArtifactStore
from reefcommon.config import load
from reefcommon.events import utc_now
from reefcommon.settings import SystemSettings
from reefkit.artifacts.selection import open_artifact_store
from reefkit.background import Rounds, end, lasting
from reefkit.bus import EventPublisher, KafkaPublisher, kafka_broker, route
from reefkit.ops import Health, ops_app
from reefkit.redis_heads import RedisReleaseHeads, connect
from reefkit.redis_rotation import RedisRotation
from reefkit.serving import HttpServingNode, ServingNode
from reefkit.startup import Start
from services.evaluator.episodes import Episodes
from services.evaluator.handlers import Handlers
from services.evaluator.plans import Plans
from services.evaluator.redis_evidence import RedisEvidence
from services.evaluator.settings import Settings
from services.evaluator.trial import Bench

log = structlog.get_logger()

SERVICE = "evaluator"


def routes(handlers: Handlers) -> KafkaRouter:
    """The arrivals of this service. Samples have a group of their own, so that they do not wait for a long evaluation."""
    return KafkaRouter(
        handlers=(
            route(handlers.on_sample, topics.SAMPLES, group=f"{SERVICE}-samples"),
            route(handlers.on_candidate, topics.CANDIDATES, group=f"{SERVICE}-candidates"),
        )
    )


def build(
    plans: Plans,
    system: SystemSettings,
    settings: Settings,
    redis: Redis,
    store: ArtifactStore,
    nodes: tuple[ServingNode, ...],
    events: EventPublisher,
    *,
    now: Callable[[], datetime] = utc_now,
) -> Handlers:
    """Everything but the outside systems, which are given."""
    bench = Bench(
        nodes,
        store,
        (system.state_dir / SERVICE).resolve(),
        system.model_name,
        RedisRotation(redis),
        settings.episode_attempts,
        settings.first_delay_s,
    )
    episodes = Episodes(
        settings.pairs_at_once,
        settings.episode_attempts,
        settings.first_delay_s,
        settings.episode_within_s,
    )
    return Handlers(
        plans, RedisReleaseHeads(redis), bench, episodes, RedisEvidence(redis), events, now
    )


def application(system: SystemSettings, settings: Settings) -> Starlette:
    """The service as one ASGI application; its lifespan starts and stops the consumers and the second looks. Raises BadConfig."""
    plans = Plans.load(load(system.config or Path("serve.yaml")))
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
            handlers = build(plans, system, settings, redis, store, nodes, KafkaPublisher(broker))
            broker.include_router(routes(handlers))
            looks = Rounds("second looks", handlers.look_again, settings.look_again_every_s)
            start = Start(broker)
            start.begin()
            task = lasting(start.after(looks.run), looks.name)
            health.checks["started"] = start.check
            health.checks["waiting"] = looks.check
            health.facts.update(
                waiting_candidates=lambda: len(looks.result or ()),
                waiting_for=lambda: [asdict(item) for item in looks.result or ()],
                tasks=lambda: [item.name for item in plans.tasks],
            )
            log.info(
                "evaluator_started", tasks=len(plans.tasks), nodes=[node.url for node in nodes]
            )
            yield
            await start.end()
            await end((task,))
            await broker.stop()
        await redis.aclose()

    return ops_app(health, lifespan)
