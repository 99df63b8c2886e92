"""The routing table on an in-memory broker: what is published on one topic comes out on another."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest
from faststream.kafka import KafkaBroker, TestKafkaBroker
from faststream.message import StreamMessage
from pydantic import TypeAdapter

from reefcommon import topics
from reefcommon.events import (
    AnyUnit,
    DeadLettered,
    SampleReady,
    Signal,
    SignalComputed,
    unit_kind,
    utc_now,
)
from reefcommon.settings import SystemSettings
from reefkit.bus import KafkaPublisher, kafka_broker
from services.experience.app import routes
from services.experience.kafka import KafkaDeadLetters
from services.experience.settings import Settings
from services.experience.wants import Wants
from tests.experience.conftest import Service
from tests.experience.factory import assistant, inference, report, user

pytestmark = pytest.mark.store


def listening(broker: KafkaBroker, topic: str) -> list[bytes]:
    """What is published on a topic from now on."""
    heard: list[bytes] = []

    # A plain function would run in a pool of threads, and two messages would change places.
    async def raw(message: StreamMessage[Any]) -> bytes:
        return message.body

    @broker.subscriber(topic, decoder=raw)
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


async def test_a_conversation_comes_out_as_turns_and_a_session_and_a_signal_as_a_row(
    service: Service,
) -> None:
    broker = kafka_broker(SystemSettings(), "experience")
    wants = Wants({"default": frozenset({"turn", "session"})})
    handlers = replace(service.handlers, publisher=KafkaPublisher(broker), wants=wants)
    broker.include_router(routes(handlers, Settings()))
    units = listening(broker, topics.SAMPLES.name)
    one = inference((user("a"),), "b")
    said = (user("a"), assistant("b"), user("c"))
    two = inference(said, "d", at=1, prompt=(1, 2, 3, 4, 5, 6), session_end=True)
    signal = SignalComputed(
        event_id="sig-1", at=utc_now(), scenario="default", recipe="r", unit_id="unt-1",
        signal=Signal(score=1.0),
    )  # fmt: skip
    async with TestKafkaBroker(broker):
        for record in (one, two, one):
            body = record.model_dump_json().encode()
            await broker.publish(body, topics.INFERENCES.name, key=b"0000")
        await broker.publish(signal.model_dump_json().encode(), topics.SIGNALS.name, key=b"default")
    made = [TypeAdapter(AnyUnit).validate_json(body) for body in units]
    assert [unit_kind(unit) for unit in made] == ["turn", "turn", "session"]
    assert [unit.record_ids[-1] for unit in made] == [one.event_id, two.event_id, two.event_id]
    assert made[0].next_messages == (user("c"),)
    assert await service.count("units") == 3
    (row,) = (await service.reads.page("signals", "default", limit=9))["data"]
    assert (row["signal_id"], row["score"], row["unit_id"]) == ("sig-1", 1.0, "unt-1")
