"""The routing table on an in-memory broker: what is published on one topic comes out on another."""

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
