"""Composition of the evaluator."""

from functools import partial
from pathlib import Path

from faststream.kafka import KafkaRouter
from starlette.applications import Starlette

from reefcommon import topics
from reefcommon.config import load
from reefcommon.settings import SystemSettings
from reefkit.background import Periodic
from reefkit.bus import fast_route, route
from reefkit.ops import Health
from reefkit.outside import Outside
from reefkit.recipes.sandbox import Sandbox
from reefkit.retry import RetryPolicy
from reefkit.service import BackgroundTask, Service
from services.evaluator.agent_episodes import agent_episodes
from services.evaluator.bench import Bench
from services.evaluator.comparer import Comparer
from services.evaluator.episodes import Episodes
from services.evaluator.handlers import Handlers, Verdicts
from services.evaluator.kafka_candidates import KafkaCandidates
from services.evaluator.plans import Plans
from services.evaluator.rechecks import Rechecks
from services.evaluator.redis_evidence import RedisEvidence, trials_lease
from services.evaluator.settings import Settings
from services.evaluator.trials import CandidateLog, Trials

SERVICE = "evaluator"


def routes(handlers: Handlers) -> KafkaRouter:
    """Build the routing table. Samples have their own group: no evaluation delays them."""
    samples = route(handlers.on_sample, topics.SAMPLES, group=f"{SERVICE}-samples")
    candidates = fast_route(handlers.on_candidate, topics.CANDIDATES, group=f"{SERVICE}-candidates")
    return KafkaRouter(handlers=(samples, candidates))


def build(
    plans: Plans, settings: Settings, outside: Outside, *, candidates: CandidateLog | None = None
) -> Handlers:
    """Build the handlers on the given outside systems."""
    system, nodes, store = outside.system, outside.nodes, outside.artifacts
    home, base = (system.state_dir / SERVICE).resolve(), system.model_name
    retry = RetryPolicy(settings.first_delay_s, max_attempts=settings.episode_attempts)
    bench = Bench(nodes, store, home, base, outside.rotation, retry)
    limits = settings.pairs_at_once, settings.scores_at_once, retry, settings.episode_within_s
    evidence, agents = RedisEvidence(outside.redis), agent_episodes(plans, system, retry)
    more = Episodes(*limits), evidence, agents, settings.joint_wait_s
    comparer = Comparer(plans, outside.heads, bench, *more)
    logs = (outside.log_of(topics.CANDIDATES), outside.log_of(topics.EVALUATIONS))
    candidates = candidates or KafkaCandidates(*logs)
    lease, verdicts = partial(trials_lease, outside.redis), Verdicts(outside.events, outside.now)
    rechecks = Rechecks(comparer, evidence, outside.events, outside.now)
    given = (comparer, evidence, candidates, lease, verdicts.publish, rechecks, bench.failing)
    return Handlers(plans, evidence, Trials(*given, settings.long_wait_s, outside.now))


def application(system: SystemSettings, settings: Settings) -> Starlette:
    """Build the service on its real adapters. Raises BadConfig if the serve.yaml is unusable."""
    config = load(system.config or Path("serve.yaml"))
    plans = Plans.load(config, limit_s=settings.episode_within_s, run=Sandbox().run)
    outside, broker = Outside.connect(system, SERVICE)
    handlers = build(plans, settings, outside)
    broker.include_router(routes(handlers))
    trials = handlers.trials
    rounds = Periodic("trials", trials.round, settings.look_again_every_s)
    health = Health(SERVICE, broker=broker, checks={"waiting": rounds.check})
    health.facts.update(trials.facts(), tasks=plans.task_names)
    lost = Periodic("lost candidates", trials.find_lost, settings.reread_log_every_s, 60.0)
    tasks = tuple(BackgroundTask(one.name, one.run) for one in (rounds, lost))
    close = outside.close, trials.close
    return Service(health, broker, prepare=trials.restore, tasks=tasks, close=close).app()
