"""The composition of a host service from bindings and their executors."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reefcommon.artifacts import ArtifactStore
from reefcommon.errors import Unavailable
from reefcommon.events import utc_now
from reefcommon.settings import HostSettings, SystemSettings
from reefkit.artifacts.cache import FetchedTrees
from reefkit.artifacts.selection import open_artifact_store
from reefkit.background import Periodic
from reefkit.bus import EventPublisher, KafkaPublisher, kafka_broker
from reefkit.jobs import host
from reefkit.jobs.context import Ports
from reefkit.jobs.host import Handlers, Retention
from reefkit.jobs.loop import HostLoop
from reefkit.jobs.outbox import Outbox
from reefkit.jobs.ports import Executor, Lease
from reefkit.jobs.store import JobStore
from reefkit.ops import Health
from reefkit.recipe_binding import Binding
from reefkit.redis_heads import RedisReleaseHeads, connect
from reefkit.redis_lease import RedisLease
from reefkit.rejected_contents import RejectedContents
from reefkit.retry import RetryPolicy
from reefkit.service import Service, Work

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
    """Build the service on its real adapters."""
    home = system.state_dir.resolve() / name
    store = JobStore(
        home / "ledger.sqlite", {binding.key: binding.recipe.name for binding in bindings}
    )
    kit = Kit(home, store, open_artifact_store(system), FetchedTrees(home / "trees"))
    redis, broker = connect(system.redis_url), kafka_broker(system, name)
    heads, lease = RedisReleaseHeads(redis), RedisLease(redis, name, home)
    ports = host_ports(kit, KafkaPublisher(broker), lease, settings)
    handlers = build(bindings, kit, ports, executor)
    broker.include_router(host.routes(handlers, name))
    rejected = RejectedContents(store, kit.artifacts, heads, ports.storing)
    retention = Retention(name, handlers, kit.trees, rejected, settings, utc_now)
    every_s = settings.retention_every_s
    rounds = Periodic("retention", retention.round, every_s, first_after_s=every_s)

    # Before the consumers join: a host that stands by takes no partition from the active host.
    async def prepare() -> None:
        store.fence(await lease.acquire(store.token))
        await host.seed(handlers, heads)

    async def close() -> None:
        with suppress(Unavailable):  # the lease ends by itself
            await lease.release()
        await redis.aclose()
        await asyncio.to_thread(store.close)

    health = Health(name, broker=broker)
    health.checks["jobs"] = lambda: host.check(handlers.loops)
    health.facts["bindings"] = lambda: host.facts(handlers.loops)
    tasks = (
        Work("lease", lease.keep, early=True),
        *(Work(loop.binding.key, loop.run) for loop in handlers.loops),
        Work(rounds.name, rounds.run),
    )
    return Service(health, broker, prepare=prepare, tasks=tasks, close=(close,))


def host_ports(kit: Kit, publisher: EventPublisher, lease: Lease, settings: HostSettings) -> Ports:
    retry = RetryPolicy(settings.first_delay_s, settings.max_delay_s, settings.max_attempts)
    outbox = Outbox(kit.store, publisher, lease)
    return Ports(outbox, kit.artifacts, utc_now, retry, settings.decide_timeout_s)
