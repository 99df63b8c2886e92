"""One candidate through the routing tables of evaluator and publisher, in memory: proposed, judged,
published, announced.
"""

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from faststream.kafka import TestKafkaBroker

from reefcommon import topics
from reefcommon.artifacts import describe
from reefcommon.config import parse
from reefcommon.events import (
    CandidateProposed,
    Event,
    Lineage,
    Publication,
    ReleasePublished,
    ReleaseRejected,
    RollbackRequested,
    ScenarioCreateRequested,
    utc_now,
)
from reefcommon.settings import SystemSettings
from reefkit.artifacts.git import GitArtifactStore
from reefkit.bus import KafkaPublisher, kafka_broker
from reefkit.outside import Outside
from reefkit.redis_heads import RedisReleaseHeads, connect
from services.evaluator import app as evaluator
from services.evaluator.plans import Plans
from services.evaluator.settings import Settings as EvaluatorSettings
from services.publisher import app as publisher
from services.publisher.settings import Settings as PublisherSettings
from tests.evaluator.conftest import TASKS, EpisodeNode
from tests.fakes.evidence import MemoryCandidateLog

pytestmark = pytest.mark.redis


def proposed(store: GitArtifactStore, root: Path, seed: str, base: str) -> CandidateProposed:
    tree = root / f"tree-{seed}"
    tree.mkdir()
    (tree / "adapter_model.safetensors").write_bytes(seed.encode() * 100)
    manifest = describe(tree, "lora")
    store.put(tree, manifest, "default")
    return CandidateProposed(
        event_id=f"cnd-{seed}",
        at=utc_now(),
        scenario="default",
        kind="lora",
        content_id=manifest.content_id,
        base_release_id=base,
        lineage=Lineage(recipe="recipes.sao.recipe:SAORecipe"),
    )


async def test_proposed_judged_published_rolled_back(redis_url: str, tmp_path: Path) -> None:
    redis = connect(urlsplit(redis_url)._replace(path="/43").geturl())
    await redis.flushdb()
    broker = kafka_broker(SystemSettings(state_dir=tmp_path), "test")
    events = KafkaPublisher(broker)
    system = SystemSettings(state_dir=tmp_path)
    store = GitArtifactStore(tmp_path / "artifacts.git")
    node = EpisodeNode()
    nodes: Any = (node,)
    config = parse(TASKS + "}")
    seen: list[Event] = []

    outside = Outside(system, redis, store, nodes, events)
    log = MemoryCandidateLog()
    process = evaluator.build(Plans.load(config), EvaluatorSettings(), outside, candidates=log)
    upkeep = publisher.build(config, PublisherSettings(), outside)
    broker.include_router(evaluator.routes(process))
    broker.include_router(publisher.routes(upkeep.handlers))

    @broker.subscriber(topics.RELEASES.name, group_id="watcher")
    async def watch(event: Publication) -> None:
        seen.append(event)

    async with TestKafkaBroker(broker):
        await events.publish(
            ScenarioCreateRequested(event_id="cmd-1", at=utc_now(), scenario="default"),
            topics.COMMANDS,
        )
        heads = RedisReleaseHeads(redis)
        root = await heads.head("default")
        assert root is not None
        winner = proposed(store, tmp_path, "winner", root.release_id)
        await events.publish(winner, topics.CANDIDATES)
        await process.trials.settled()
        head = await heads.head("default")
        assert head is not None
        assert (head.candidate_id, head.parent_id) == ("cnd-winner", root.release_id)
        assert list(node.adapters) == [head.adapter]
        await events.publish(proposed(store, tmp_path, "late", root.release_id), topics.CANDIDATES)
        await process.trials.settled()
        command = RollbackRequested(
            event_id="cmd-2", at=utc_now(), scenario="default", release_id=root.release_id
        )
        await events.publish(command, topics.COMMANDS)
    published = [event for event in seen if isinstance(event, ReleasePublished)]
    assert [event.release.operation for event in published] == ["creation", "training", "rollback"]
    assert [event.command_id for event in published] == ["cmd-1", None, "cmd-2"]
    rejected = [event for event in seen if isinstance(event, ReleaseRejected)]
    assert [(event.candidate_id, event.outcome) for event in rejected] == [("cnd-late", "rejected")]
    assert "stale_base" in rejected[0].reason
    await redis.aclose()
