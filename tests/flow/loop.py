"""Six services on one broker in memory. Engine, stores and heads are fakes; the rest is production.

users -> gateway -> experience -> trainer, harness -> evaluator -> publisher -> gateway
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from faststream.kafka import TestKafkaBroker

from reefcommon import topics
from reefcommon.config import ServeConfig, parse
from reefcommon.evaluation import choose
from reefcommon.events import Event, Publication, ReleasePublished, utc_now
from reefcommon.harness.admission import CHAT
from reefcommon.harness.tree import HarnessRecipe
from reefcommon.recipe import WeightRecipe
from reefcommon.settings import SystemSettings
from reefkit.artifacts.cache import FetchedTrees
from reefkit.bus import Bus, KafkaPublisher, kafka_broker
from reefkit.jobs import host
from reefkit.jobs.context import Kit
from reefkit.jobs.host import build
from reefkit.jobs.outbox import Outbox
from reefkit.jobs.store import JobStore
from reefkit.recipe_binding import bindings
from reefkit.retry import RetryPolicy
from services.evaluator import app as evaluator
from services.evaluator import handlers as evaluator_handlers
from services.evaluator.bench import Bench
from services.evaluator.comparer import Comparer
from services.evaluator.episodes import Episodes
from services.evaluator.plans import Plans
from services.evaluator.rechecks import Rechecks
from services.evaluator.trials import Trials
from services.experience import app as experience
from services.experience.kafka import KafkaDeadLetters
from services.experience.settings import Settings as ExperienceSettings
from services.gateway.composition import Gateway, Ports, assemble
from services.gateway.domain.access import Access
from services.gateway.domain.log_event import LogEvent
from services.gateway.settings import Settings as GatewaySettings
from services.gateway.upstream.engines import HttpEngines
from services.harness.executor import HarnessExecutor
from services.publisher import app as publisher
from services.publisher import handlers as publisher_handlers
from services.publisher.fleet import Fleet
from services.publisher.publication import WorkRunner
from services.publisher.upkeep import Upkeep
from services.trainer.executor import WeightExecutor
from services.trainer.states import SavedStates
from tests.evaluator.conftest import EpisodeNode
from tests.fakes.artifacts import MemoryArtifactStore
from tests.fakes.evidence import MemoryCandidateLog, MemoryEvidence
from tests.fakes.experience import MemoryExperienceStore
from tests.fakes.heads import MemoryReleaseHeads
from tests.fakes.leases import SoleHolder
from tests.fakes.publisher import MemoryRotation, MemoryWorks
from tests.gateway.conftest import CHAT as MESSAGES
from tests.gateway.conftest import serving
from tests.gateway.fakes import MemoryBodies, MemoryCommands, MemoryKeyStore, MemoryReads
from tests.gateway.stub_engine import StubEngine
from tests.trainer.rig import InProcess, Mortal

CONFIG = """
reef:
- {recipe: 'tests.trainer.counting:CountingRecipe', batch_size: 2, max_staleness: 9}
- {recipe: 'recipes.feedback_rules.recipe:FeedbackRulesRecipe', batch_size: 3, min_agreement: 3}
evaluation: {tasks: [one, two, three, four, five], score: 'tests.evaluator.verifiers:length'}
"""
WISH = "Please greet me with Hello first."


class BusLog:
    """The gateway's record log on the broker in memory."""

    def __init__(self, broker: Bus) -> None:
        self.broker = broker

    async def append(self, event: LogEvent) -> None:
        await self.broker.publish(event.data, topic=event.topic, key=event.shard.encode())

    async def failure(self) -> str | None:
        return None

    def refusal(self) -> str | None:
        return None

    def waiting_since(self) -> float | None:
        return None


def answer(model: str, messages: list[dict[str, Any]], _seed: int, _choice: int) -> str:
    """Any adapter answers at greater length, and so does a prompt with the users' wish."""
    return "x" + "adapter" * (model != "reef") + "Hello" * (WISH in str(messages))


@dataclass
class Loop:
    """The running services, and the parts that a test looks at."""

    http: httpx.AsyncClient
    heads: MemoryReleaseHeads
    node: EpisodeNode
    engine: StubEngine
    trials: Trials
    hosts: tuple[host.Handlers, host.Handlers]
    seen: list[Event] = field(default_factory=list)

    async def ask(self) -> httpx.Response:
        return await self.http.post(
            "/v1/chat/completions", json={"model": "reef", "messages": MESSAGES}
        )

    async def report(self, receipt: str, wish: str = WISH) -> None:
        body = {"references": [receipt], "score": 0.0, "feedback": wish}
        response = await self.http.post("/reef/report", json=body)
        assert response.status_code == 202, response.text


@asynccontextmanager
async def running(home: Path, text: str = CONFIG) -> AsyncIterator[Loop]:
    """All services, until the block ends."""
    config = parse(text)
    system = SystemSettings(state_dir=home)
    broker = kafka_broker(system, "flow")
    events = KafkaPublisher(broker)
    heads, store = MemoryReleaseHeads(), MemoryArtifactStore()
    rotation, node, engine = MemoryRotation(), EpisodeNode(answer=answer), StubEngine()

    experiences = experience.Handlers(
        ExperienceSettings(),
        store=MemoryExperienceStore(),
        publisher=events,
        dead=KafkaDeadLetters(broker.guard),
        bodies=broker.guard.bodies,
    )
    broker.include_router(experience.routes(experiences, ExperienceSettings()))
    hosts = job_hosts(home, config, store, events)
    broker.include_router(host.routes(hosts[0], "trainer"))
    broker.include_router(host.routes(hosts[1], "harness"))
    evaluation = evaluating(home, config, heads, store, node, rotation, events)
    broker.include_router(evaluator.routes(evaluation))
    upkeep = publishing(home, config, heads, store, node, rotation, events)
    broker.include_router(publisher.routes(upkeep.handlers))

    async with AsyncExitStack() as opened:
        engine_url = await opened.enter_async_context(serving(engine.app))
        gateway = gateway_on(engine_url, config, heads, broker)
        seen: list[Event] = []

        @broker.subscriber(topics.RELEASES.name, group_id="gateway")
        async def route(event: Publication) -> None:
            seen.append(event)
            if isinstance(event, ReleasePublished):
                gateway.handlers.on_release(event)

        await opened.enter_async_context(TestKafkaBroker(broker))
        await upkeep.start()
        for handlers in hosts:
            await host.seed(handlers, heads)
            for loop in handlers.loops:
                task = asyncio.create_task(loop.run())
                opened.callback(task.cancel)
        opened.push_async_callback(evaluation.trials.close)
        url = await opened.enter_async_context(serving(gateway.app))
        http = await opened.enter_async_context(httpx.AsyncClient(base_url=url, timeout=20))
        yield Loop(http, heads, node, engine, evaluation.trials, hosts, seen)


def job_hosts(
    home: Path, config: ServeConfig, store: MemoryArtifactStore, events: KafkaPublisher
) -> tuple[host.Handlers, host.Handlers]:
    """Trainer and harness, each with a job store of its own."""

    def weights(binding: Any, kit: Kit) -> WeightExecutor:
        (model := kit.home / "model").mkdir(exist_ok=True)
        process = InProcess(binding, model, Mortal(), [])
        states = SavedStates(kit.home / "states")
        return WeightExecutor(binding, kit, states, process, kept_states=2)

    def files(binding: Any, kit: Kit) -> HarnessExecutor:
        return HarnessExecutor(binding, kit, CHAT, propose_timeout_s=10)

    def hosting(name: str, bindings: Any, executor: Any) -> host.Handlers:
        (own := home / name).mkdir()
        jobs = JobStore(own / "ledger.sqlite")
        outbox, trees = Outbox(jobs, events, SoleHolder()), FetchedTrees(own / "trees")
        kit = Kit(own, jobs, store, trees, outbox, utc_now, RetryPolicy(0.01, 0.05, 3))
        return build(bindings, kit, executor)

    return (
        hosting("trainer", bindings(config, WeightRecipe), weights),
        hosting("harness", bindings(config, HarnessRecipe), files),
    )


def evaluating(
    home: Path,
    config: ServeConfig,
    heads: MemoryReleaseHeads,
    store: MemoryArtifactStore,
    node: Any,
    rotation: MemoryRotation,
    events: KafkaPublisher,
) -> evaluator_handlers.Handlers:
    """The evaluator."""
    retry = RetryPolicy(0.01, max_attempts=3)
    bench = Bench((node,), store, home / "evaluator", "reef", rotation, retry)
    plans, evidence = Plans.load(config), MemoryEvidence()
    comparer = Comparer(plans, heads, bench, Episodes(4, 1, retry, 5.0), evidence)
    publish = evaluator_handlers.Verdicts(events, utc_now).publish
    rechecks = Rechecks(comparer, evidence, events, utc_now)
    trials = Trials(
        comparer, evidence, MemoryCandidateLog(), SoleHolder, publish, rechecks, bench.failing
    )
    return evaluator_handlers.Handlers(plans, evidence, trials)


def publishing(
    home: Path,
    config: ServeConfig,
    heads: MemoryReleaseHeads,
    store: MemoryArtifactStore,
    node: Any,
    rotation: MemoryRotation,
    events: KafkaPublisher,
) -> Upkeep:
    """The publisher."""
    works = MemoryWorks()
    fleet = Fleet((node,), store, home / "staging", "reef", rotation)
    runner = WorkRunner(
        heads,
        works,
        fleet,
        events,
        utc_now,
        on_stale=lambda scenario, recipe: choose(config, scenario, recipe).on_stale,
    )
    handlers = publisher_handlers.Handlers(config, heads, works, runner, utc_now)

    class NoLog:
        async def read(self) -> list[Event]:
            return []

    return Upkeep(handlers, runner, fleet, heads, NoLog(), config.all_scenarios)


def gateway_on(
    engine_url: str, config: ServeConfig, heads: MemoryReleaseHeads, broker: Bus
) -> Gateway:
    """The gateway in front of the stub engine."""
    system = SystemSettings(engine_urls=engine_url, model_name="reef")
    engines = HttpEngines(system.engines, connect_timeout_s=20, read_timeout_s=20)

    def lifespan(made: Gateway) -> Any:
        @asynccontextmanager
        async def span(_app: Any) -> AsyncIterator[None]:
            await made.scenarios.snapshot()
            yield
            await engines.stop()

        return span

    ports = partial(Ports, BusLog(broker), MemoryBodies(), engines, heads, MemoryKeyStore())
    return assemble(
        GatewaySettings(),
        system,
        ports(MemoryReads(), MemoryCommands()),
        access=Access(),
        config=config,
        lifespan=lifespan,
    )
