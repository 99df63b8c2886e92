"""The example of a recipe on the topics alone, run as its docstring says, against the real broker and a real artifact store."""

import asyncio
import os
import sys
import uuid

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from reefcommon import topics
from reefcommon.events import CandidateProposed, SampleReady, utc_now
from reefcommon.harness.files import read_tree
from reefkit.artifacts.git import GitArtifactStore
from reefkit.kafka_topics import ensure_topics
from tests.recipes.turns import turn


def sample(scenario: str, number: int, *, score: float | None, feedback: str | None) -> SampleReady:
    return SampleReady(
        event_id=f"smp-{scenario}-{number}", at=utc_now(), recorded_at=utc_now(), scenario=scenario, record_ids=("rec-1",),
        release_id="r0-abcdef", score=score, feedback=feedback,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("env", "stack", "said"),
    [
        ({}, "", "no Reef runs on "),
        ({}, '{"phase": "ended", "urls": {"kafka": "127.0.0.1:9"}}', "no Reef runs on "),
        (
            {},
            '{"phase": "ready", "urls": {"kafka": "127.0.0.1:9"}}',
            "no broker answers at 127.0.0.1:9: is that Reef up?",
        ),
        (
            {"REEF_KAFKA_BOOTSTRAP": "127.0.0.1:9"},
            "",
            "no broker answers at 127.0.0.1:9: is that Reef up?",
        ),
    ],
)
async def test_a_broker_that_is_not_there_is_one_line(tmp_path, env, stack, said):
    (tmp_path / "stack.json").write_text(stack)
    known = {name: value for name, value in os.environ.items() if name != "REEF_KAFKA_BOOTSTRAP"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "recipes.examples.kafka_recipe", stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL,
        env={**known, "REEF_STATE_DIR": str(tmp_path), **env},
    )  # fmt: skip
    _, err = await process.communicate()
    assert process.returncode == 1
    assert said in err.decode()
    assert "Traceback" not in err.decode()


@pytest.mark.broker
async def test_words_about_a_low_score_become_a_candidate(own_kafka_bootstrap, tmp_path):
    kafka_bootstrap = own_kafka_bootstrap  # the recipe reads all samples that are there
    await ensure_topics(kafka_bootstrap)
    scenario = f"s{uuid.uuid4().hex[:8]}"
    samples = [
        turn(scenario=scenario),
        sample(scenario, 1, score=1.0, feedback="fine"),
        sample(scenario, 2, score=0.0, feedback=None),
        sample(scenario, 3, score=0.0, feedback="answer in French"),
    ]
    producer = AIOKafkaProducer(bootstrap_servers=kafka_bootstrap)
    await producer.start()
    for event in samples:
        await producer.send_and_wait(
            topics.SAMPLES.name, event.model_dump_json().encode(), key=scenario.encode()
        )
    await producer.stop()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "recipes.examples.kafka_recipe",
        env={**os.environ, "REEF_KAFKA_BOOTSTRAP": kafka_bootstrap, "REEF_STATE_DIR": str(tmp_path)},
    )  # fmt: skip
    consumer = AIOKafkaConsumer(
        topics.CANDIDATES.name, bootstrap_servers=kafka_bootstrap, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        async with asyncio.timeout(60):
            while (
                candidate := CandidateProposed.model_validate_json((await consumer.getone()).value)
            ).scenario != scenario:
                pass
    finally:
        await consumer.stop()
        process.terminate()
        await process.wait()
    assert (candidate.kind, candidate.base_release_id) == ("harness", "r0-abcdef")
    manifest = await asyncio.to_thread(
        GitArtifactStore(tmp_path / "artifacts.git").get,
        candidate.content_id,
        scenario,
        tmp_path / "got",
    )
    assert manifest.kind == "harness"
    (entry,) = read_tree(tmp_path / "got")
    assert "answer in French" in entry.config["text"]
