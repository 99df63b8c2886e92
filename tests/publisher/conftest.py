"""A publisher on a real Valkey, with everything else in the test's hands."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis

from reefcommon.config import ServeConfig, parse
from reefcommon.evaluation import choose
from reefcommon.events import Command, Release, ReleaseRejected, utc_now
from reefkit.redis_heads import RedisReleaseHeads, connect
from reefkit.redis_rotation import RedisRotation
from services.publisher.fleet import Fleet
from services.publisher.full_weights import FullWeights
from services.publisher.handlers import Handlers
from services.publisher.publication import WorkRunner
from services.publisher.redis_works import RedisWorks
from services.publisher.upkeep import Upkeep
from tests.publisher.fakes import (
    FakeEvents,
    FakeNode,
    FakeStore,
    Fuse,
    Fused,
    evaluated,
    safetensors,
)

NODE_EFFECTS = (
    "load_adapter", "unload_adapter", "chat", "pause", "start_update", "update", "finish_update", "reset_prefix_cache", "resume",
)  # fmt: skip
CONFIG = parse("reef:\n  recipe: recipes.sao.recipe:SAORecipe\n")
REVIEWED = parse("reef:\n  recipe: recipes.sao.recipe:SAORecipe\n  review: manual\n")


@dataclass
class World:
    """The outside, which outlives a process."""

    redis: Redis
    state: Path
    nodes: list[FakeNode] = field(
        default_factory=lambda: [FakeNode("http://node-1"), FakeNode("http://node-2")]
    )
    store: FakeStore = field(default_factory=FakeStore)
    events: FakeEvents = field(default_factory=FakeEvents)
    config: ServeConfig = CONFIG
    full: bool = True
    drain_s: float = 0.0
    late_s: float = 0.0
    """How far the publisher's clock is ahead."""

    def now(self) -> datetime:
        return utc_now() + timedelta(seconds=self.late_s)

    @property
    def heads(self) -> RedisReleaseHeads:
        return RedisReleaseHeads(self.redis)

    def process(self, fuse: Fuse | None = None) -> Upkeep:
        """A fresh publisher process. With a fuse it dies at the fuse's effect."""
        fuse = fuse or Fuse()
        heads: Any = Fused(self.heads, fuse, "advance", "drop_pending", "put_pending")
        works: Any = Fused(RedisWorks(self.redis, kept_s=600), fuse, "save")
        events: Any = Fused(self.events, fuse, "publish")
        nodes: Any = tuple(Fused(node, fuse, *NODE_EFFECTS) for node in self.nodes)
        rotation = RedisRotation(self.redis)
        full = FullWeights("path", "127.0.0.1", 0.5, 30.0, rotation.lease) if self.full else None
        base = self.state / "base"
        base.mkdir(exist_ok=True)
        (base / "model.safetensors").write_bytes(safetensors(a=0.0, b=0.0))
        fleet = Fleet(
            nodes,
            self.store,
            self.state / "staging",
            "reef",
            rotation,
            stage_within_s=2.0,
            full=full,
            base_path=base,
        )
        runner = WorkRunner(
            heads,
            works,
            fleet,
            events,
            self.now,
            on_stale=lambda scenario, recipe: choose(self.config, scenario, recipe).on_stale,
            resident_adapters=self.config.serving.resident_adapters,
            drain_s=self.drain_s,
            within_s=100.0,
        )
        handlers = Handlers(self.config, heads, works, runner, utc_now)
        return Upkeep(handlers, runner, fleet, heads, self.events, self.config.all_scenarios)

    async def started(self) -> Upkeep:
        upkeep = self.process()
        await upkeep.start()
        return upkeep

    async def head(self, scenario: str = "default") -> Release:
        head = await self.heads.head(scenario)
        assert head is not None
        return head

    async def publish(self, upkeep: Upkeep, seed: str, **options: Any) -> Release:
        """A candidate on the present head, through to its release."""
        await upkeep.handlers.on_evaluated(
            evaluated("default", (await self.head()).release_id, seed, **options)
        )
        return await self.head()

    async def command(self, upkeep: Upkeep, command: Command) -> None:
        await upkeep.handlers.on_command(command)

    def rejections(self) -> list[tuple[str, str]]:
        return [(event.outcome, event.reason) for event in self.events.of(ReleaseRejected)]


@pytest.fixture
async def world(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    client = connect(urlsplit(redis_url)._replace(path="/41").geturl())
    await client.flushdb()
    yield World(client, tmp_path)
    await client.aclose()
