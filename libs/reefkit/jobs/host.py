"""A host service: its arrivals, its state for `/status`, and the composition of its loops."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import structlog
from faststream.kafka import KafkaRouter

from reefcommon import topics
from reefcommon.config import ServeConfig, load
from reefcommon.config_sections import SERVED, ModelEndpoint
from reefcommon.errors import Unavailable
from reefcommon.events import AnyUnit, Proposal, Publication, ReleasePublished, unit_kind
from reefcommon.recipe import Recipe
from reefcommon.releases import ReleaseHeads
from reefcommon.settings import HostSettings, SystemSettings
from reefkit.artifacts.cache import FetchedTrees
from reefkit.background import Periodic
from reefkit.bus import route
from reefkit.jobs.claims import objection
from reefkit.jobs.context import Kit
from reefkit.jobs.loop import HostLoop
from reefkit.jobs.model import candidates_in
from reefkit.jobs.outbox import Outbox
from reefkit.jobs.ports import Executor
from reefkit.jobs.retention import RejectedContents, Retention
from reefkit.jobs.store import JobStore
from reefkit.ops import Health
from reefkit.outside import Outside
from reefkit.recipe_binding import Binding, bindings
from reefkit.recipes.endpoint import key_of
from reefkit.recipes.models import ModelPool
from reefkit.recipes.runtime import RecipeServices
from reefkit.recipes.sandbox import Sandbox
from reefkit.recipes.seek_client import SeekClient
from reefkit.recipes.seek_services import SeekServices
from reefkit.recipes.shown import host_routes
from reefkit.recipes.signals import RESTORED
from reefkit.redis_lease import RedisLease
from reefkit.retry import RetryPolicy
from reefkit.service import BackgroundTask, Service

log = structlog.get_logger()


MakeExecutor = Callable[[Binding[Any], Kit], Executor]


@dataclass(frozen=True, slots=True)
class Handlers:
    """The arrivals. Each returns when its effect is on disk."""

    loops: tuple[HostLoop, ...]
    store: JobStore

    async def on_unit(self, event: AnyUnit) -> None:
        kind = unit_kind(event)
        for loop in self._of(event.scenario):
            if kind in loop.binding.recipe.consumes:
                await loop.put(event)

    async def on_publication(self, event: Publication) -> None:
        """Keep the new head, then the verdict on a candidate of this host."""
        loops = self._of(event.scenario)
        if not loops:
            return
        # The head first: a loop that sees the verdict must see the head that it made.
        if isinstance(event, ReleasePublished):
            await asyncio.to_thread(self.store.advance, event.release)
        for candidate in candidates_in(event):
            job = await asyncio.to_thread(self.store.of_candidate, candidate)
            for loop in loops:
                if job is not None:
                    await loop.apply_verdict(job, event)
        for loop in loops:
            loop.arrived.set()

    async def on_proposal(self, event: Proposal) -> None:
        """Keep a proposal, or the reason why no recipe takes it."""
        takers = [one for one in self._of(event.scenario) if one.executor.proposals_at_most()]
        refusal = objection([(one.binding, one.executor) for one in takers], event)
        at_most = max((one.executor.proposals_at_most() for one in takers), default=0)
        await asyncio.to_thread(self.store.put_proposal, event, at_most, refusal)
        for loop in takers:
            loop.arrived.set()

    @property
    def takes_proposals(self) -> bool:
        return any(loop.executor.proposals_at_most() for loop in self.loops)

    def facts(self) -> dict[str, Any]:
        return {loop.binding.key: loop.facts() for loop in self.loops}

    async def check(self) -> str | None:
        states = [(loop.binding.key, loop.context.failing) for loop in self.loops]
        return "; ".join(f"{key}: {failing}" for key, failing in states if failing) or None

    def _of(self, scenario: str) -> list[HostLoop]:
        return [loop for loop in self.loops if loop.binding.scenario == scenario]


def routes(handlers: Handlers, service: str, *, proposals: bool = False) -> KafkaRouter:
    found = [
        route(handlers.on_publication, topics.RELEASES, group=f"{service}-releases"),
        route(handlers.on_unit, topics.SAMPLES, group=f"{service}-samples"),
    ]
    if proposals:
        found.append(route(handlers.on_proposal, topics.PROPOSALS, group=f"{service}-proposals"))
    return KafkaRouter(handlers=tuple(found))


async def seed(handlers: Handlers, heads: ReleaseHeads) -> None:
    """Take over the present heads before the release chain is read. Raises Unavailable."""
    for scenario in {loop.binding.scenario for loop in handlers.loops}:
        if (release := await heads.head(scenario)) is not None:
            await asyncio.to_thread(handlers.store.advance, release, is_head=True)


async def take_over(store: JobStore, lease: RedisLease) -> None:
    """Acquire the lease and fence the job store. Raises Unavailable."""
    before = store.token
    store.fence(await lease.acquire(before))
    # If another host has acted since, its signals are in the log alone.
    if lease.token not in (before, before + 1):
        await asyncio.to_thread(store.drop_marks, RESTORED)


def build(bound: Sequence[Binding[Any]], kit: Kit, executor: MakeExecutor) -> Handlers:
    loops = (HostLoop(binding, executor(binding, kit), kit) for binding in bound)
    return Handlers(tuple(loops), kit.store)


def recipe_services(
    store: JobStore, served: ServeConfig, outside: Outside, settings: HostSettings
) -> RecipeServices:
    """Build the services of the recipes. Raises BadConfig if a key cannot be read."""
    system = outside.system
    return RecipeServices(
        store,
        outside.now,
        ModelPool(
            store,
            served.models,
            gateway_url=system.gateway_url,
            model_name=system.model_name,
            priority=settings.seek_priority,
        ),
        RetryPolicy(settings.first_delay_s, settings.max_delay_s, settings.max_attempts),
        signals_at_once=settings.signals_at_once,
        signal_timeout_s=settings.signal_timeout_s,
        signal_log=outside.log_of(topics.SIGNALS).read,
        programs=Sandbox(),
        evaluation=served.evaluation,
    )


def seek_services(served: ServeConfig, outside: Outside, settings: HostSettings) -> SeekServices:
    """Build the services of the seekers. Raises BadConfig if the key cannot be read."""
    system, entry = outside.system, served.models.get(SERVED, ModelEndpoint())
    token, at_once, timeout_s = key_of(SERVED, entry), settings.seek_in_flight, entry.timeout_s

    def client() -> SeekClient:
        return SeekClient(system.gateway_url, token, at_once, timeout_s=timeout_s)

    name = entry.model or system.model_name
    return SeekServices(client, outside.heads, name, settings.seek_priority)


def host_service(
    name: str,
    system: SystemSettings,
    settings: HostSettings,
    kind: type[Recipe],
    executor: MakeExecutor,
) -> Service:
    """Build the host of all recipes of a kind. Raises BadConfig if `serve.yaml` is unusable."""
    served = load(system.config) if system.config else ServeConfig(reef=())
    bound = bindings(served, kind)
    home = system.state_dir.resolve() / name
    recipes = {binding.key: binding.recipe.name for binding in bound}
    store = JobStore(home / "ledger.sqlite", recipes)
    outside, broker = Outside.connect(system, name)
    lease = RedisLease(outside.redis, name, home, ttl_s=10.0)
    trees, outbox = FetchedTrees(home / "trees"), Outbox(store, outside.events, lease)
    services = recipe_services(store, served, outside, settings)
    artifacts, now, limit_s = outside.artifacts, outside.now, settings.decide_timeout_s
    kit = Kit(home, store, artifacts, trees, outbox, now, services.retry, limit_s, services)
    kit = replace(kit, seekers=seek_services(served, outside, settings))
    handlers = build(bound, kit, executor)
    if handlers.loops:  # without a recipe nobody waits for what consumers would fetch
        broker.include_router(routes(handlers, name, proposals=handlers.takes_proposals))
    rejected = RejectedContents(store, kit.artifacts, outside.heads, kit.storing)
    retention = Retention(name, handlers.loops, kit.trees, rejected, settings, outside.now)
    every_s = settings.retention_every_s
    rounds = Periodic("retention", retention.round, every_s, first_after_s=every_s)

    # Before the consumers join: a host that stands by takes no partition from the active host.
    async def prepare() -> None:
        await take_over(store, lease)
        log.info("lease_acquired", lease=name, token=lease.token)
        await seed(handlers, outside.heads)

    async def close() -> None:
        with suppress(Unavailable):  # the lease ends by itself
            await lease.release()
        await services.models.close()
        await outside.close()
        await asyncio.to_thread(store.close)

    facts: dict[str, Callable[[], Any]] = {
        "bindings": handlers.facts,
        "models": services.models.facts,
    }
    if services.programs is not None:
        facts["sandbox"] = services.programs.describe
    at_most = {one.binding.key: one.executor.proposals_at_most() for one in handlers.loops}
    shown = host_routes(store, at_most)
    health = Health(name, {"jobs": handlers.check}, facts, broker)
    tasks = (
        BackgroundTask("lease", lease.keep, early=True),
        *(task for loop in handlers.loops for task in loop.tasks()),
        BackgroundTask(rounds.name, rounds.run),
    )
    return Service(health, broker, prepare=prepare, tasks=tasks, routes=shown, close=(close,))
