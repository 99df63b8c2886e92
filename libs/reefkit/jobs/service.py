"""The composition of a host service from bindings and their executors."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from reefcommon.artifacts import ArtifactStore
from reefcommon.errors import Unavailable
from reefcommon.settings import HostSettings, SystemSettings
from reefkit.artifacts.cache import FetchedTrees
from reefkit.background import Periodic
from reefkit.jobs import host
from reefkit.jobs.context import Ports
from reefkit.jobs.host import Handlers, Retention
from reefkit.jobs.loop import HostLoop
from reefkit.jobs.outbox import Outbox
from reefkit.jobs.ports import Executor
from reefkit.jobs.store import JobStore
from reefkit.ops import Health
from reefkit.outside import Outside
from reefkit.recipe_binding import Binding
from reefkit.redis_lease import RedisLease
from reefkit.rejected_contents import RejectedContents
from reefkit.retry import RetryPolicy
from reefkit.service import Service, Work

log = structlog.get_logger()

Bindings = tuple[Binding[Any], ...]


@dataclass(frozen=True, slots=True)
class Kit:
    """The parts that executors share. `home`: the state directory of the service."""

    home: Path
    store: JobStore
    artifacts: ArtifactStore
    trees: FetchedTrees


MakeExecutor = Callable[[Binding[Any], Kit], Executor]


def build(bindings: Bindings, kit: Kit, ports: Ports, executor: MakeExecutor) -> Handlers:
    loops = tuple(
        HostLoop(binding, kit.store, executor(binding, kit), ports) for binding in bindings
    )
    return Handlers(loops, kit.store)


def host_service(
    name: str,
    system: SystemSettings,
    settings: HostSettings,
    bindings: Bindings,
    executor: MakeExecutor,
) -> Service:
    home = system.state_dir.resolve() / name
    recipes = {binding.key: binding.recipe.name for binding in bindings}
    store = JobStore(home / "ledger.sqlite", recipes)
    outside, broker = Outside.connect(system, name)
    kit = Kit(home, store, outside.artifacts, FetchedTrees(home / "trees"))
    lease = RedisLease(outside.redis, name, home, ttl_s=10.0)
    outbox = Outbox(store, outside.events, lease)
    retry = RetryPolicy(settings.first_delay_s, settings.max_delay_s, settings.max_attempts)
    ports = Ports(outbox, kit.artifacts, outside.now, retry, settings.decide_timeout_s)
    handlers = build(bindings, kit, ports, executor)
    broker.include_router(host.routes(handlers, name))
    rejected = RejectedContents(store, kit.artifacts, outside.heads, ports.storing)
    retention = Retention(name, handlers, kit.trees, rejected, settings, outside.now)
    every_s = settings.retention_every_s
    rounds = Periodic("retention", retention.round, every_s, first_after_s=every_s)

    # Before the consumers join: a host that stands by takes no partition from the active host.
    async def prepare() -> None:
        store.fence(await lease.acquire(store.token))
        log.info("lease_acquired", lease=name, token=lease.token)
        await host.seed(handlers, outside.heads)

    async def close() -> None:
        with suppress(Unavailable):  # the lease ends by itself
            await lease.release()
        await outside.close()
        await asyncio.to_thread(store.close)

    health = Health(name, broker=broker)
    health.checks["jobs"] = handlers.check
    health.facts["bindings"] = handlers.facts
    tasks = (
        Work("lease", lease.keep, early=True),
        *(Work(loop.binding.key, loop.run) for loop in handlers.loops),
        Work(rounds.name, rounds.run),
    )
    return Service(health, broker, prepare=prepare, tasks=tasks, close=(close,))
