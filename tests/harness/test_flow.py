"""Events through the routing table: in memory from sample to the second candidate, and once as a process on the real broker."""

import asyncio
import json
import os
import signal
import socket
import sys
import urllib.request
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from faststream.kafka import TestKafkaBroker

from reefcommon import topics
from reefcommon.events import CandidateProposed, StepCompleted
from reefcommon.settings import SystemSettings
from reefkit.bus import KafkaPublisher, kafka_broker
from reefkit.jobs import host
from reefkit.kafka_topics import ensure_topics
from tests.harness.support import (
    BINDING,
    Published,
    base_release,
    first,
    published,
    sample,
    service,
)

ROOT = Path(__file__).parents[2]


async def until(condition, timeout_s=20.0):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.01)


async def test_samples_to_candidate_to_verdict_to_next_step(tmp_path):
    broker = kafka_broker(SystemSettings(state_dir=tmp_path), "test")
    seen = Published()
    worker = service(tmp_path, KafkaPublisher(broker))
    broker.include_router(host.routes(worker.handlers, "harness"))

    @broker.subscriber(topics.CANDIDATES.name, group_id="evaluator-and-publisher")
    async def judge(candidate: CandidateProposed) -> None:
        await seen.publish(candidate, topics.CANDIDATES)

    @broker.subscriber(topics.TRAINING.name, group_id="watcher")
    async def watch(step: StepCompleted) -> None:
        await seen.publish(step, topics.TRAINING)

    async with TestKafkaBroker(broker):
        publisher = KafkaPublisher(broker)
        task = asyncio.create_task(worker.loops[BINDING.key].run())
        await publisher.publish(first(base_release()), topics.RELEASES)
        for number in (1, 2, 3):
            await publisher.publish(sample(number, untrainable="no_token_ids"), topics.SAMPLES)
        await until(lambda: len(seen.of(StepCompleted)) == 1)
        (candidate,) = seen.of(CandidateProposed)
        for number in (4, 5, 6):
            await publisher.publish(sample(number, "Be brief."), topics.SAMPLES)
        await asyncio.sleep(0.1)
        assert seen.of(CandidateProposed) == [candidate]
        await publisher.publish(published(candidate, base_release()), topics.RELEASES)
        await until(lambda: len(seen.of(StepCompleted)) == 2)
        assert [item.base_release_id for item in seen.of(CandidateProposed)] == ["rel-0", "rel-1"]
        await until(lambda: "stored" not in worker.store.counts("jobs", BINDING.key))
        task.cancel()
    assert worker.store.counts("samples", BINDING.key) == {"used": 6}
    assert worker.store.counts("jobs", BINDING.key) == {"published": 1, "announced": 1}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


async def started(home, bootstrap, port, redis="redis://127.0.0.1:1/0"):
    env = {
        **os.environ, "REEF_CONFIG": str(home / "serve.yaml"), "REEF_STATE_DIR": str(home), "REEF_KAFKA_BOOTSTRAP": bootstrap,
        "REEF_HARNESS_PORT": str(port), "REEF_REDIS_URL": redis, "PYTHONPATH": f"{ROOT}:{ROOT / 'libs'}", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    log = (home / "harness.log").open("ab")
    with log:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.harness", env=env, cwd=ROOT, stderr=log
        )


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
        return json.loads(answer.read())


async def ready(port):
    async with asyncio.timeout(40):
        while True:
            try:
                return await asyncio.to_thread(get, port, "/readyz")
            except OSError:
                await asyncio.sleep(0.1)


@pytest.mark.broker
@pytest.mark.redis
async def test_the_process_killed_after_each_half_makes_each_candidate_once(
    own_kafka_bootstrap, redis_url, tmp_path
):
    """Fed by the real broker, killed with SIGKILL while a verdict is due, started again, stopped with SIGTERM: two candidates, a clean stop."""
    await ensure_topics(own_kafka_bootstrap)
    (tmp_path / "serve.yaml").write_text(
        f"reef:\n  recipe: {BINDING.dotted}\n  batch_size: 3\n  min_agreement: 3\n"
    )
    settings = SystemSettings(state_dir=tmp_path, kafka_bootstrap=own_kafka_bootstrap)
    broker = kafka_broker(settings, "test")
    await broker.start()
    publisher = KafkaPublisher(broker)
    consumer = AIOKafkaConsumer(
        topics.CANDIDATES.name, bootstrap_servers=own_kafka_bootstrap, auto_offset_reset="earliest"
    )
    await consumer.start()
    port = free_port()
    process = await started(tmp_path, own_kafka_bootstrap, port, redis_url)
    try:
        await publisher.publish(first(base_release()), topics.RELEASES)
        for number in (1, 2, 3):
            await publisher.publish(sample(number), topics.SAMPLES)
        async with asyncio.timeout(60):
            one = CandidateProposed.model_validate_json((await consumer.getone()).value)
        process.kill()
        await process.wait()
        for number in (4, 5, 6):
            await publisher.publish(sample(number, "Be brief."), topics.SAMPLES)
        await publisher.publish(published(one, base_release()), topics.RELEASES)
        process = await started(tmp_path, own_kafka_bootstrap, port, redis_url)
        assert (await ready(port))["failures"] == {}
        found = {one.event_id: one}
        async with asyncio.timeout(60):
            while len(found) < 2:
                event = CandidateProposed.model_validate_json((await consumer.getone()).value)
                assert found.setdefault(event.event_id, event) == event
        assert [item.base_release_id for item in found.values()] == ["rel-0", "rel-1"]
        async with asyncio.timeout(30):  # the job is saved as announced after its events are out
            while True:
                counts = (await asyncio.to_thread(get, port, "/status"))["bindings"][BINDING.key]
                if "stored" not in counts["jobs"]:
                    break
        assert counts["samples"] == {"used": 6}
        assert counts["jobs"] == {"published": 1, "announced": 1}
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            # The HTTP server drains, then lets the signal end the process.
            assert await process.wait() in (0, -signal.SIGTERM)
        assert "harness_stopped" in (tmp_path / "harness.log").read_text()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await consumer.stop()
        await broker.stop()


async def test_a_bad_setting_is_told_and_ends_the_process(tmp_path):
    (tmp_path / "serve.yaml").write_text(f"reef:\n  recipe: {BINDING.dotted}\n  min_agreemnt: 3\n")
    process = await started(tmp_path, "127.0.0.1:1", free_port())
    async with asyncio.timeout(60):
        assert await process.wait() == 2
    assert "min_agreemnt" in (tmp_path / "harness.log").read_text()
