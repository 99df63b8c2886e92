"""Solutions through the routing tables of evaluator and publisher: the better number serves."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from faststream.kafka import TestKafkaBroker

from reefcommon import topics
from reefcommon.artifacts import describe
from reefcommon.config import parse
from reefcommon.events import (
    CandidateProposed,
    Lineage,
    Publication,
    ReleaseRejected,
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
from tests.fakes.evidence import MemoryCandidateLog

pytestmark = pytest.mark.redis

RECIPE = "tests.evaluator.recipes:PackingRecipe"


def solution(store: GitArtifactStore, root: Path, number: str, base: str) -> CandidateProposed:
    tree = root / f"tree-{number}"
    tree.mkdir()
    (tree / "file").write_text(number)
    manifest = describe(tree, "solution")
    store.put(tree, manifest, "default")
    return CandidateProposed(
        event_id=f"cnd-{number}",
        at=utc_now(),
        scenario="default",
        kind="solution",
        content_id=manifest.content_id,
        base_release_id=base,
        lineage=Lineage(recipe=RECIPE),
    )


async def test_the_better_solution_becomes_the_head(redis_url: str, tmp_path: Path) -> None:
    """No serving node is there: a solution is judged by its files, and served by download."""
    redis = connect(urlsplit(redis_url)._replace(path="/43").geturl())
    await redis.flushdb()
    system = SystemSettings(state_dir=tmp_path)
    broker = kafka_broker(system, "test")
    events, store = KafkaPublisher(broker), GitArtifactStore(tmp_path / "artifacts.git")
    config = parse(f"reef: {{recipe: '{RECIPE}'}}")
    outside, log = Outside(system, redis, store, (), events), MemoryCandidateLog()
    process = evaluator.build(Plans.load(config), EvaluatorSettings(), outside, candidates=log)
    upkeep = publisher.build(config, PublisherSettings(), outside)
    broker.include_router(evaluator.routes(process))
    broker.include_router(publisher.routes(upkeep.handlers))
    rejected: list[ReleaseRejected] = []

    @broker.subscriber(topics.RELEASES.name, group_id="watcher")
    async def watch(event: Publication) -> None:
        if isinstance(event, ReleaseRejected):
            rejected.append(event)

    async with TestKafkaBroker(broker):
        created = ScenarioCreateRequested(event_id="cmd-1", at=utc_now(), scenario="default")
        await events.publish(created, topics.COMMANDS)
        heads = RedisReleaseHeads(redis)
        for number in ("2.5", "2.4", "2.6"):
            head = await heads.head("default")
            assert head is not None
            candidate = solution(store, tmp_path, number, head.release_id)
            await events.publish(candidate, topics.CANDIDATES)
            await process.trials.settled()
        # Proposed before the head was known that its better predecessor has made.
        for number in ("2.7", "2.8"):
            candidate = solution(store, tmp_path, number, head.release_id)
            await events.publish(candidate, topics.CANDIDATES)
            await process.trials.settled()
        chain = await heads.chain("default")
    numbers = ("2.8", "2.7", "2.6", "2.5")
    assert [release.candidate_id for release in chain] == [*(f"cnd-{n}" for n in numbers), None]
    *_, best, first, _ = chain
    assert (best.kind, best.operation, best.adapter) == ("solution", "training", None)
    assert best.evaluation is not None
    assert first.evaluation is not None
    assert (first.evaluation.strength, best.evaluation.strength) == ("none", "strong")
    assert best.evaluation.tasks[0].candidate_words == "the sum of radii is 2.6"
    (lost,) = rejected
    assert (lost.candidate_id, lost.reason) == (
        "cnd-2.4",
        "2.4 against 2.5 (-0.1); needs to be greater",
    )
    await redis.aclose()
