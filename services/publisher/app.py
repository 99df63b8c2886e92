"""Composition of the publisher: settings -> adapters -> handlers -> routes -> service."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from faststream.kafka import KafkaBroker, KafkaRouter
from redis.asyncio import Redis
from starlette.applications import Starlette

from reefcommon import topics
from reefcommon.artifacts import ArtifactStore
from reefcommon.config import ServeConfig, load
from reefcommon.evaluation import choose
from reefcommon.events import utc_now
from reefcommon.serving import WeightNode
from reefcommon.settings import SystemSettings
from reefkit.artifacts.selection import open_artifact_store
from reefkit.background import Periodic
from reefkit.bodies import FilesystemBodies
from reefkit.bus import EventPublisher, KafkaPublisher, kafka_broker, route
from reefkit.kafka_topic_log import KafkaTopicLog
from reefkit.ops import Health
from reefkit.redis_heads import RedisReleaseHeads, connect
from reefkit.redis_rotation import RedisRotation
from reefkit.service import Service, Work
from reefkit.serving_http import serving_nodes
from services.publisher.fleet import Fleet
from services.publisher.full_weights import FullWeights
from services.publisher.handlers import Handlers
from services.publisher.publication import Publication
from services.publisher.redis_works import RedisWorks
from services.publisher.settings import Settings
from services.publisher.upkeep import Upkeep

SERVICE = "publisher"


def routes(handlers: Handlers) -> KafkaRouter:
    """Build the routing table. Commands have a group of their own: no verdict delays a rollback."""
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
    """Build the upkeep and its handlers on the given outside systems."""
    heads, rotation = RedisReleaseHeads(redis), RedisRotation(redis)
    works = RedisWorks(redis, kept_s=settings.work_kept_s)
    fleet = Fleet(
        nodes=nodes,
        store=store,
        staging=system.state_dir / "staging",
        base_model=system.model_name,
        rotation=rotation,
        stage_within_s=settings.stage_within_s,
        full=full_weights(settings, rotation),
        base_path=system.model_path,
    )
    publication = Publication(
        heads,
        works,
        fleet,
        events,
        now,
        on_stale=lambda scenario, recipe: choose(config, scenario, recipe).on_stale,
        resident_adapters=config.serving.resident_adapters,
        within_s=settings.publish_within_s,
    )
    handlers = Handlers(config, heads, works, publication, events, now)
    bodies = FilesystemBodies(system.state_dir / "bodies")
    release_log = KafkaTopicLog(topics.RELEASES, system.kafka_bootstrap, bodies)
    scenarios, slow_for_s = config.all_scenarios, settings.node_slow_for_s
    return Upkeep(handlers, publication, fleet, heads, release_log, scenarios, slow_for_s)


def full_weights(settings: Settings, rotation: RedisRotation) -> FullWeights | None:
    if settings.weight_transfer == "off":
        return None
    return FullWeights(
        settings.weight_transfer,
        settings.weight_transfer_host,
        settings.weight_step_within_s,
        settings.weight_sender_within_s,
        rotation,
    )


def application(system: SystemSettings, settings: Settings) -> Starlette:
    """Build the service on its real adapters. Raises BadConfig if the serve.yaml is unusable."""
    config = load(system.config or Path("serve.yaml"))
    redis, store = connect(system.redis_url), open_artifact_store(system)
    nodes = serving_nodes(system)
    broker = kafka_broker(system, SERVICE)
    upkeep = build(config, system, settings, redis, store, nodes, KafkaPublisher(broker))
    broker.include_router(routes(upkeep.handlers))
    rounds = Periodic("upkeep", upkeep.round, settings.reconcile_every_s)
    health = Health(SERVICE, broker=broker)
    show(health, upkeep, rounds, broker)
    return Service(
        health,
        broker,
        prepare=upkeep.start,  # a verdict needs a head to be compared with
        tasks=(
            # The nodes get the heads at once, whether or not the broker answers.
            Work(rounds.name, rounds.run, early=True),
            Work("resume", upkeep.resume, ends=True),
        ),
        close=(redis.aclose, *(node.close for node in nodes)),
    ).app()


def show(health: Health, upkeep: Upkeep, rounds: Periodic[None], broker: KafkaBroker) -> None:

    async def restored() -> str | None:
        if not upkeep.ready:
            return "the release heads are being restored from the log"
        if not upkeep.synced:
            return "no serving node holds the head releases yet; they are being loaded"
        return None

    async def listening() -> str | None:
        if broker.running:
            return None
        return "verdicts and commands are not taken yet: the consumer groups are being joined"

    health.checks.update(restored=restored, upkeep=rounds.check, listening=listening)
    health.facts.update(
        nodes=lambda: {
            node.url: upkeep.apart.get(node.url, "in rotation") for node in upkeep.fleet.nodes
        },
        scenarios=lambda: list(upkeep.scenarios),
    )
