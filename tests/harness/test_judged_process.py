"""The process with a judge on the real broker: killed, and on a new disk, it asks about no unit twice."""

import asyncio
import shutil
from contextlib import suppress

import pytest
from aiokafka import AIOKafkaConsumer

from reefcommon import topics
from reefcommon.events import CandidateProposed
from reefcommon.settings import SystemSettings
from reefkit.bus import KafkaPublisher, kafka_broker
from reefkit.kafka_topics import ensure_topics
from tests.fakes.judge import Judge
from tests.harness.support import base_release, first, sample
from tests.harness.test_flow import free_port, get, started

DOTTED = "tests.harness.judged:JudgedRules"
KEY = f"default/{DOTTED}"


async def facts(port):
    return (await asyncio.to_thread(get, port, "/status"))["bindings"][KEY]


async def until_ready(port):
    async with asyncio.timeout(150):
        while True:
            with suppress(OSError):
                return await asyncio.to_thread(get, port, "/readyz")
            await asyncio.sleep(0.2)


async def until_decided(port, **samples):
    async with asyncio.timeout(150):
        while (found := await facts(port))["samples"] != samples:
            await asyncio.sleep(0.2)
    return found


@pytest.mark.broker
@pytest.mark.redis
@pytest.mark.timeout(400)
async def test_signals_outlive_the_process_and_its_disk(
    own_kafka_bootstrap, redis_url, tmp_path, monkeypatch
):
    # one unit at a time: the first window is that of the first two samples
    monkeypatch.setenv("REEF_HARNESS_SIGNALS_AT_ONCE", "1")
    await ensure_topics(own_kafka_bootstrap)
    broker = kafka_broker(
        SystemSettings(state_dir=tmp_path, kafka_bootstrap=own_kafka_bootstrap), "test"
    )
    await broker.start()
    publisher, port = KafkaPublisher(broker), free_port()
    consumer = AIOKafkaConsumer(
        topics.CANDIDATES.name, bootstrap_servers=own_kafka_bootstrap, auto_offset_reset="earliest"
    )
    await consumer.start()
    async with Judge() as judge:
        entry = f"{{url: '{judge.url}', model: m, max_calls: 3}}"
        config = f"reef:\n  recipe: {DOTTED}\nmodels:\n  judge: {entry}\n"
        (tmp_path / "serve.yaml").write_text(config)
        process = await started(tmp_path, own_kafka_bootstrap, port, redis_url)
        try:
            await publisher.publish(first(base_release()), topics.RELEASES)
            for number in range(4):
                await publisher.publish(sample(number, f"wish {number}"), topics.SAMPLES)
            async with asyncio.timeout(120):
                one = CandidateProposed.model_validate_json((await consumer.getone()).value)
            shown = await until_decided(port, used=2, waiting=1, unsignalled=1)
            assert "'judge' is used up: 3 of 3 calls" in shown["signals"]["waits"]
            status = await asyncio.to_thread(get, port, "/status")
            assert status["models"]["judge"]["spent"] == ["calls"]
            recipes = await asyncio.to_thread(get, port, "/recipes/default")
            assert [row["json"] for row in recipes[KEY]["state"]] == ["3"]
            process.kill()
            await process.wait()

            # The disk is new, and the log is read again from its beginning.
            shutil.rmtree(tmp_path / "harness")
            settings = SystemSettings(state_dir=tmp_path, kafka_bootstrap=own_kafka_bootstrap)
            (tmp_path / "serve.yaml").write_text(config.replace("max_calls: 3", "max_calls: 9"))
            process = await started(tmp_path, own_kafka_bootstrap, port, redis_url)
            await until_ready(port)
            again = kafka_broker(settings, "test")
            await again.start()
            for number in range(4):  # its consumer group has read them before
                await KafkaPublisher(again).publish(
                    sample(number, f"wish {number}"), topics.SAMPLES
                )
            await again.stop()
            await publisher.publish(first(base_release()), topics.RELEASES)
            await until_decided(port, used=2, waiting=2)
            assert judge.calls == len(judge.keys) == 4
            two = CandidateProposed.model_validate_json((await consumer.getone()).value)
            assert one.lineage.sample_ids == two.lineage.sample_ids == ("smp-0", "smp-1")
            assert one.event_id == two.event_id
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
            await consumer.stop()
            await broker.stop()
