"""Composition of the evaluator: settings -> adapters -> handlers -> routes -> service."""

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

from faststream.kafka import KafkaRouter
from redis.asyncio import Redis
from starlette.applications import Starlette

from reefcommon import topics
from reefcommon.artifacts import ArtifactStore
from reefcommon.config import load
from reefcommon.events import utc_now
from reefcommon.serving import ServingNode
from reefcommon.settings import SystemSettings
from reefkit.artifacts.selection import open_artifact_store
from reefkit.background import Periodic
from reefkit.bodies import FilesystemBodies
from reefkit.bus import EventPublisher, KafkaPublisher, kafka_broker, route
from reefkit.kafka_topic_log import KafkaTopicLog
from reefkit.ops import Health
from reefkit.redis_heads import RedisReleaseHeads, connect
from reefkit.redis_rotation import RedisLeases, RedisRotation
from reefkit.retry import RetryPolicy
from reefkit.service import Service, Work
from reefkit.serving_http import serving_nodes
from services.evaluator.episodes import Episodes
from services.evaluator.handlers import Handlers, Verdicts
from services.evaluator.judge import Judge
from services.evaluator.kafka_candidates import KafkaCandidates
from services.evaluator.plans import Plans
from services.evaluator.redis_evidence import RedisEvidence
from services.evaluator.settings import Settings
from services.evaluator.trial import Bench
from services.evaluator.trials import CandidateLog, Trials

SERVICE = "evaluator"


def routes(handlers: Handlers) -> KafkaRouter:
    """Build the routing table. Samples have a group of their own: no evaluation delays them."""
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
    candidates: CandidateLog | None = None,
) -> Handlers:
    """Build the handlers on the given outside systems."""
    home = (system.state_dir / SERVICE).resolve()
    retry = RetryPolicy(settings.first_delay_s, max_attempts=settings.episode_attempts)
    bench = Bench(nodes, store, home, system.model_name, RedisRotation(redis), retry)
    episodes = Episodes(
        settings.pairs_at_once, settings.scores_at_once, retry, settings.episode_within_s
    )
    evidence = RedisEvidence(redis)
    judge = Judge(plans, RedisReleaseHeads(redis), bench, episodes, evidence)
    candidates = candidates or kafka_candidates(system)
    leases = RedisLeases(redis, "reef:trials")
    verdicts = Verdicts(events, now)
    trials = Trials(judge, evidence, candidates, leases, verdicts.publish)
    return Handlers(plans, evidence, trials)


def kafka_candidates(system: SystemSettings) -> KafkaCandidates:
    bodies = FilesystemBodies(system.state_dir / "bodies")
    candidates, evaluations = (
        KafkaTopicLog(topic, system.kafka_bootstrap, bodies)
        for topic in (topics.CANDIDATES, topics.EVALUATIONS)
    )
    return KafkaCandidates(candidates, evaluations)


def application(system: SystemSettings, settings: Settings) -> Starlette:
    """Build the service on its real adapters. Raises BadConfig if the serve.yaml is unusable."""
    plans = Plans.load(load(system.config or Path("serve.yaml")))
    redis, store = connect(system.redis_url), open_artifact_store(system)
    nodes = serving_nodes(system)
    broker = kafka_broker(system, SERVICE)
    handlers = build(plans, system, settings, redis, store, nodes, KafkaPublisher(broker))
    broker.include_router(routes(handlers))
    trials = handlers.trials
    looks = Periodic("trials", trials.round, settings.look_again_every_s)
    health = Health(SERVICE, broker=broker, checks={"waiting": looks.check})
    health.facts.update(
        waiting_candidates=lambda: len(looks.result or ()),
        waiting_for=lambda: [asdict(item) for item in looks.result or ()],
        tasks=lambda: [item.name for item in plans.tasks],
    )
    close = (redis.aclose, *(node.close for node in nodes), trials.close)
    tasks = (Work(looks.name, looks.run),)
    return Service(health, broker, prepare=trials.restore, tasks=tasks, close=close).app()
