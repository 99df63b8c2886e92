"""The routing table on an in-memory broker: what is published on one topic comes out on another."""

import asyncio
import time
from dataclasses import replace

import pytest
from faststream.kafka import KafkaBroker, TestKafkaBroker

from reefcommon import topics
from reefcommon.events import DeadLettered, SampleReady
from reefcommon.settings import SystemSettings
from reefkit.bus import KafkaPublisher, kafka_broker
from services.experience.app import routes
from services.experience.kafka import KafkaDeadLetters
from services.experience.settings import Settings
from tests.experience.conftest import Service
from tests.experience.factory import inference, report

pytestmark = pytest.mark.store


def listening(broker: KafkaBroker, topic: str) -> list[bytes]:
    """What is published on a topic from now on."""
    heard: list[bytes] = []

    @broker.subscriber(topic, decoder=lambda message: message.body)
    async def hear(body: bytes) -> None:
        heard.append(body)

    return heard


async def test_an_exchange_and_a_report_come_out_as_a_sample_and_poison_as_a_dead_letter(
    service: Service,
) -> None:
    broker = kafka_broker(SystemSettings(), "experience")
    handlers = replace(
        service.handlers, publisher=KafkaPublisher(broker), dead=KafkaDeadLetters(broker.guard)
    )
    broker.include_router(routes(handlers, Settings()))
    samples, dead = (
        listening(broker, topics.SAMPLES.name),
        listening(broker, topics.INFERENCES.dead),
    )
    record = inference()
    said = report(record.event_id, score=0.5)
    async with TestKafkaBroker(broker):
        await broker.publish(b"{}", topics.INFERENCES.name)
        await broker.publish(record.model_dump_json().encode(), topics.INFERENCES.name, key=b"0000")
        await broker.publish(said.model_dump_json().encode(), topics.FEEDBACK.name, key=b"0000")
    (sample,) = [SampleReady.model_validate_json(body) for body in samples]
    assert (sample.record_ids, sample.report_id, sample.score) == (
        (record.event_id,),
        said.event_id,
        0.5,
    )
    (letter,) = [DeadLettered.model_validate_json(body) for body in dead]
    assert (letter.topic, letter.group) == (topics.INFERENCES.name, "experience")
    assert "ValidationError" in letter.reason


@pytest.mark.parametrize(("batch_records", "pause_ms", "least_s", "most_s"), [(1000, 300, 0.3, 60), (10, 10_000, 0, 9)])  # fmt: skip
async def test_a_small_batch_pauses_after_its_effect_and_a_backlog_does_not(
    service: Service, batch_records: int, pause_ms: int, least_s: float, most_s: float
) -> None:
    broker = kafka_broker(SystemSettings(), "experience")
    settings = Settings(batch_records=batch_records, batch_pause_ms=pause_ms)
    broker.include_router(routes(service.handlers, settings))
    record = inference()
    async with TestKafkaBroker(broker), asyncio.timeout(most_s):
        began = time.monotonic()
        await broker.publish(record.model_dump_json().encode(), topics.INFERENCES.name, key=b"0000")
        assert time.monotonic() - began >= least_s
    assert record.event_id in await service.store.places([record.event_id])
