"""Composition of the publisher."""

from pathlib import Path
from typing import Any

from faststream.kafka import KafkaRouter
from starlette.applications import Starlette

from reefcommon import topics
from reefcommon.config import ServeConfig, load
from reefcommon.evaluation import choose
from reefcommon.settings import SystemSettings
from reefkit.background import Periodic
from reefkit.bus import fast_route
from reefkit.ops import Health
from reefkit.outside import Outside
from reefkit.service import BackgroundTask, Service
from services.publisher.fleet import Fleet
from services.publisher.full_weights import FullWeights
from services.publisher.handlers import Handlers
from services.publisher.publication import WorkRunner
from services.publisher.redis_works import RedisWorks
from services.publisher.settings import Settings
from services.publisher.upkeep import Upkeep
from services.publisher.webhook import webhook_routes

SERVICE = "publisher"


def routes(handlers: Handlers, *more: Any) -> KafkaRouter:
    """Build the routing table. Commands have their own group: no verdict delays a rollback."""
    verdicts = fast_route(handlers.on_evaluated, topics.EVALUATIONS, group=f"{SERVICE}-evaluations")
    commands = fast_route(handlers.on_command, topics.COMMANDS, group=f"{SERVICE}-commands")
    return KafkaRouter(handlers=(verdicts, commands, *more))


def build(config: ServeConfig, settings: Settings, outside: Outside) -> Upkeep:
    """Build the upkeep and its handlers on the given outside systems."""
    system, heads, events, now = outside.system, outside.heads, outside.events, outside.now
    works = RedisWorks(outside.redis, kept_s=settings.work_kept_s)
    fleet = Fleet(
        nodes=outside.nodes,
        store=outside.artifacts,
        staging=system.state_dir / "staging",
        base_model=system.model_name,
        rotation=outside.rotation,
        stage_within_s=settings.stage_within_s,
        full=FullWeights.of(settings, outside.rotation.lease),
        base_path=system.model_path,
    )
    runner = WorkRunner(
        heads,
        works,
        fleet,
        events,
        now,
        on_stale=lambda scenario, recipe: choose(config, scenario, recipe).on_stale,
        resident_adapters=config.serving.resident_adapters,
        within_s=settings.publish_within_s,
    )
    handlers = Handlers(config, heads, works, runner, now)
    log, slow_for_s = outside.log_of(topics.RELEASES), settings.node_slow_for_s
    return Upkeep(handlers, runner, fleet, heads, log, config.all_scenarios, slow_for_s)


def application(system: SystemSettings, settings: Settings) -> Starlette:
    """Build the service on its real adapters. Raises BadConfig if the serve.yaml is unusable."""
    config = load(system.config or Path("serve.yaml"))
    outside, broker = Outside.connect(system, SERVICE)
    upkeep = build(config, settings, outside)
    broker.include_router(routes(upkeep.handlers, *webhook_routes(settings.webhook_url)))
    rounds = Periodic("upkeep", upkeep.turn, settings.reconcile_every_s)
    health = Health(SERVICE, broker=broker, facts=upkeep.facts())
    health.checks.update(restored=upkeep.check, upkeep=rounds.check)
    tasks = (
        BackgroundTask(rounds.name, rounds.run, early=True),  # the nodes get the heads at once
        BackgroundTask("resume", upkeep.resume, ends=True),
    )
    # Prepared before the consumers join: a verdict needs a head to be compared with.
    return Service(health, broker, prepare=upkeep.start, tasks=tasks, close=(outside.close,)).app()
