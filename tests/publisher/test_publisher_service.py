"""Publisher and evaluator as processes, on the real broker, Valkey, git + LFS and the tiny model."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
from aiokafka import AIOKafkaConsumer
from pydantic import TypeAdapter
from redis.asyncio import Redis

from reefcommon import topics
from reefcommon.artifacts import describe
from reefcommon.config import parse
from reefcommon.events import (
    CandidateProposed,
    Event,
    Kind,
    Lineage,
    Publication,
    Release,
    ReleasePublished,
    RollbackRequested,
    ScenarioCreateRequested,
    utc_now,
)
from reefcommon.releases import base_weights
from reefcommon.settings import SystemSettings
from reefkit.artifacts.git import GitArtifactStore
from reefkit.bus import KafkaPublisher, kafka_broker
from reefkit.redis_heads import RedisReleaseHeads, connect
from reefkit.serving_http import HttpServingNode
from reefstack.embedded import Options, Stack, embedded_stack
from reefstack.models import prepare
from tests.engine.conftest import save_adapter

pytestmark = [pytest.mark.broker, pytest.mark.redis, pytest.mark.engine]

ROOT = Path(__file__).parents[2]
CONFIG = parse(
    "reef: {recipe: 'recipes.sao.recipe:SAORecipe'}\n"
    "model: tiny\n"
    "evaluation: {tasks: [hello, goodbye], score: 'tests.evaluator.verifiers:length', policy: always, max_tokens: 8, samples_per_task: 2}\n"
)
ROLES = frozenset({"kafka", "redis", "engine", "publisher", "evaluator"})


class Watch:
    """Everything that was said on `reef.releases.v1`, as it comes."""

    def __init__(self, bootstrap: str) -> None:
        self.consumer = AIOKafkaConsumer(
            topics.RELEASES.name, bootstrap_servers=bootstrap, auto_offset_reset="earliest"
        )
        self.events: list[Event] = []

    async def until(self, found: Callable[[Event], bool], within_s: float = 60.0) -> Event:
        """The first event of that kind, old or new."""
        seen = 0
        async with asyncio.timeout(within_s):
            while True:
                for event in self.events[seen:]:
                    if found(event):
                        return event
                seen = len(self.events)
                for records in (await self.consumer.getmany(timeout_ms=50)).values():
                    self.events += [
                        TypeAdapter(Publication).validate_json(record.value) for record in records
                    ]

    async def published(
        self, found: Callable[[ReleasePublished], bool], within_s: float = 60.0
    ) -> Release:
        event = await self.until(lambda e: isinstance(e, ReleasePublished) and found(e), within_s)
        assert isinstance(event, ReleasePublished)
        return event.release


def adapter(root: Path, seed: int) -> Path:
    """A PEFT adapter of the tiny model, with random weights."""
    from services.engine.runner import load_model

    save_adapter(
        load_model(prepare("tiny"), 1), root / str(seed), ["q_proj", "v_proj", "lm_head"], seed
    )
    return root / str(seed)


def checkpoint(root: Path) -> Path:
    """All weights of the tiny model, each a little off."""
    import torch
    from safetensors.torch import save_file

    from services.engine.runner import load_model

    generator = torch.Generator().manual_seed(4)
    weights = {
        name: w + 0.05 * torch.randn(w.shape, generator=generator)
        for name, w in load_model(prepare("tiny"), 1).named_parameters()
    }
    root.mkdir()
    save_file(weights, root / "model.safetensors")
    return root


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[Stack]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "libs")))}
    async with embedded_stack(
        CONFIG,
        tmp_path / "state",
        Options(only=ROLES, memory_broker=True, default_ports=False, env=env),
    ) as running:
        yield running


async def killed(stack: Stack, name: str) -> None:
    """kill -9, and wait until the supervisor has a new one that is ready."""
    pid = stack.supervisor.children[name].record.pid
    url = f"{stack.urls[name]}/{'health' if name == 'engine' else 'readyz'}"
    os.kill(pid, signal.SIGKILL)
    async with asyncio.timeout(120), aiohttp.ClientSession() as session:
        while True:
            await asyncio.sleep(0.2)
            try:
                async with session.get(url, timeout=aiohttp.ClientTimeout(total=2)) as response:
                    if response.status == 200 and stack.supervisor.children[name].record.pid != pid:
                        return
            except (aiohttp.ClientError, TimeoutError):
                continue


@dataclass(frozen=True)
class Deployment:
    """The running stack, what others put in, and what they see of it."""

    stack: Stack
    files: Path
    store: GitArtifactStore
    events: KafkaPublisher
    watch: Watch
    redis: Redis
    heads: RedisReleaseHeads
    node: HttpServingNode

    async def propose(self, seed: int, base: Release, kind: Kind = "lora") -> Release:
        """A candidate of that kind, and the release that it becomes."""
        tree = await asyncio.to_thread(
            *((adapter, self.files, seed) if kind == "lora" else (checkpoint, self.files / "full"))
        )
        manifest = describe(tree, kind, base="tiny")
        self.store.put(tree, manifest, "default")
        candidate = CandidateProposed(
            event_id=f"cnd-{seed}",
            at=utc_now(),
            scenario="default",
            kind=kind,
            content_id=manifest.content_id,
            base_release_id=base.release_id,
            lineage=Lineage(recipe="recipes.sao.recipe:SAORecipe"),
        )
        await self.events.publish(candidate, topics.CANDIDATES)
        return await self.watch.published(lambda e: e.release.candidate_id == candidate.event_id)

    async def roll_back(self, target: Release, command: str, within_s: float = 60.0) -> Release:
        """The release that serves what `target` served."""
        asked = RollbackRequested(
            event_id=command, at=utc_now(), scenario="default", release_id=target.release_id
        )
        await self.events.publish(asked, topics.COMMANDS)
        return await self.watch.published(lambda e: e.command_id == command, within_s)

    async def answer(self, release: Release) -> str:
        """What the node says under this release; it names the release's own weights."""
        model = release.adapter or "reef"
        [found] = await self.node.chat(
            model, [{"role": "user", "content": "hello"}], max_tokens=12, temperature=0.0
        )
        assert found.model == model
        assert found.weight_version == release.adapter or found.weight_version == base_weights(
            release
        )
        return found.text


@pytest.fixture
async def deployed(stack: Stack, tmp_path: Path) -> AsyncIterator[Deployment]:
    broker = kafka_broker(SystemSettings(kafka_bootstrap=stack.kafka_bootstrap), "test")
    watch, redis = Watch(stack.kafka_bootstrap), connect(stack.redis_url)
    async with AsyncExitStack() as opened:
        opened.push_async_callback(redis.aclose)
        await broker.start()
        opened.push_async_callback(broker.stop)
        await watch.consumer.start()
        opened.push_async_callback(watch.consumer.stop)
        session = await opened.enter_async_context(aiohttp.ClientSession())
        yield Deployment(
            stack=stack,
            files=tmp_path,
            store=GitArtifactStore(stack.state_dir / "artifacts.git"),
            events=KafkaPublisher(broker),
            watch=watch,
            redis=redis,
            heads=RedisReleaseHeads(redis),
            node=HttpServingNode(stack.urls["engine"], session),
        )


async def full_weights_and_back(deployed: Deployment, head: Release) -> None:
    """A checkpoint on top, and back again: the adapter, and the base weights below it."""
    before = await deployed.answer(head)
    whole = await deployed.propose(4, head, "checkpoint")
    assert (whole.kind, whole.adapter, whole.contents.get("lora")) == ("checkpoint", None, None)
    assert whole.evaluation is not None
    assert "it was not tried" in whole.evaluation.reason
    assert await deployed.answer(whole) != before
    again = await deployed.roll_back(head, "cmd-2")
    assert await deployed.answer(again) == before
    assert (await deployed.node.weights()).version == "base"


async def roll_back_at_once(deployed: Deployment, target: Release, said: str) -> Release:
    """Rolled back and answering within two seconds, once the publisher that was started last has
    its partitions.
    """
    # The group forgets a killed member after its session time-out; until then commands wait.
    await deployed.events.publish(
        ScenarioCreateRequested(event_id="cmd-0", at=utc_now(), scenario="other"), topics.COMMANDS
    )
    await deployed.watch.published(lambda e: e.command_id == "cmd-0")
    started = time.perf_counter()
    back = await deployed.roll_back(target, "cmd-1", within_s=2.0)
    assert await deployed.answer(back) == said
    assert time.perf_counter() - started < 2.0
    return back


async def engine_starts_anew(deployed: Deployment, resident: set[str | None]) -> None:
    """A killed serving node is given its adapters again."""
    await killed(deployed.stack, "engine")
    async with asyncio.timeout(30):
        while not resident <= set(await deployed.node.models()):
            await asyncio.sleep(0.2)


async def heads_come_back(deployed: Deployment) -> None:
    """Redis is emptied: the chain is rebuilt from the log."""
    before = await deployed.heads.chain("default")
    assert [release.operation for release in before] == [
        "rollback",
        "rollback",
        "training",
        "training",
        "training",
        "creation",
    ]
    await deployed.redis.flushall()
    async with asyncio.timeout(20):
        while await deployed.heads.chain("default") != before:
            await asyncio.sleep(0.2)


@pytest.mark.timeout(400)
async def test_candidates_become_releases_whatever_is_killed(deployed: Deployment) -> None:
    """P4, and the log as the truth: kill the publisher, the engine, and empty Redis."""
    root = await deployed.watch.published(lambda e: e.release.operation == "creation")
    first = await deployed.propose(1, root)
    assert first.evaluation is not None
    assert len(first.evaluation.tasks) == 2
    assert first.evaluation.failed_episodes == 0
    said = await deployed.answer(first)

    await killed(deployed.stack, "publisher")
    second = await deployed.propose(2, first)
    assert await deployed.answer(second) != said

    await full_weights_and_back(deployed, second)
    back = await roll_back_at_once(deployed, first, said)

    await engine_starts_anew(deployed, {first.adapter, second.adapter})
    assert await deployed.answer(back) == said

    await heads_come_back(deployed)
    third = await deployed.propose(3, back)
    assert third.parent_id == back.release_id
