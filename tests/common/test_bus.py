"""The guard: what becomes of an event whose handler fails. On the real broker, since acknowledgement is the point."""

import asyncio
import base64
import json
import uuid
from datetime import timedelta

import pytest
import structlog.testing
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from faststream.kafka import KafkaRouter

from reefcommon import events
from reefcommon.errors import Conflict, Poison, Transient, Unavailable
from reefcommon.settings import SystemSettings
from reefcommon.topics import Topic
from reefkit import bus, guard
from reefkit.bus import KafkaPublisher, kafka_broker, route
from reefkit.kafka_topics import ensure_topics
from reefkit.retry import RetryPolicy

pytestmark = pytest.mark.broker


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setenv("REEF_KAFKA_SESSION_TIMEOUT_MS", "1500")
    monkeypatch.setattr(bus, "GRACEFUL_STOP_S", 0.5)
    monkeypatch.setattr(guard, "RETRY", RetryPolicy(0.01, 0.05))
    with structlog.testing.capture_logs():  # tracebacks take longer than all else
        yield


@pytest.fixture
def topic() -> Topic:
    name = f"test.commands.{uuid.uuid4().hex[:8]}"
    kinds = (events.ScenarioCreateRequested,)
    return Topic(name, kinds, (), (), "a test", partitions=2, retention=timedelta(days=1))


@pytest.fixture
def settings(kafka_bootstrap) -> SystemSettings:
    return SystemSettings(kafka_bootstrap=kafka_bootstrap)


def command(number: int) -> events.ScenarioCreateRequested:
    return events.ScenarioCreateRequested(event_id=f"c{number}", at=events.utc_now(), scenario="s")


async def until(condition, timeout_s=15.0):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


async def dead_letters(settings, topic, count):
    consumer = AIOKafkaConsumer(
        topic.dead, bootstrap_servers=settings.kafka_bootstrap, auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        async with asyncio.timeout(15):
            return [
                events.DeadLettered.model_validate_json((await consumer.getone()).value)
                for _ in range(count)
            ]
    finally:
        await consumer.stop()


def consuming(settings, topic, handler, group="g"):
    broker = kafka_broker(settings, "test")
    row = route(handler, topic, group=f"{group}-{topic.name}")
    broker.include_router(KafkaRouter(handlers=(row,)))
    return broker


async def test_what_each_kind_of_error_means(settings, topic):
    await ensure_topics(settings.kafka_bootstrap, (topic,))
    calls: list[str] = []
    errors = {
        "c1": [Poison("never")],
        "c2": [Transient("once"), Transient("twice")],
        "c3": [Unavailable("away")] * (guard.MAX_ATTEMPTS + 3),
        "c4": [Conflict("lost")],
        "c5": [ValueError("a bug")] * guard.MAX_ATTEMPTS,
    }

    async def handler(event: events.ScenarioCreateRequested) -> None:
        calls.append(event.event_id)
        if pending := errors.get(event.event_id):
            raise pending.pop(0)

    broker = consuming(settings, topic, handler)
    async with broker:
        publisher = KafkaPublisher(broker)
        await broker.start()
        for number in range(7):
            await publisher.publish(command(number), topic)
        await until(lambda: calls.count("c6") == 1)
        assert {name: calls.count(name) for name in ("c0", "c1", "c2", "c3", "c4", "c5")} == {
            "c0": 1, "c1": 1, "c2": 3, "c3": guard.MAX_ATTEMPTS + 4, "c4": 1, "c5": guard.MAX_ATTEMPTS,
        }  # fmt: skip
        letters = await dead_letters(settings, topic, 2)
    assert [json.loads(base64.b64decode(letter.value))["event_id"] for letter in letters] == [
        "c1",
        "c5",
    ]
    assert letters[0].reason == "Poison: never"
    assert letters[1].attempts == guard.MAX_ATTEMPTS


@pytest.mark.parametrize("batch", [False, True])
async def test_headers_that_are_no_text_take_no_event_with_them(settings, topic, batch):
    """Neither the record that has them nor those that come with it in one batch; a dead letter keeps them as they are."""
    await ensure_topics(settings.kafka_bootstrap, (topic,))
    odd = [("traceparent", b"00-a"), ("x", b"\xff"), ("y", None)]
    async with AIOKafkaProducer(bootstrap_servers=settings.kafka_bootstrap) as producer:
        for number in range(5):
            value = (
                b"\xff no event"
                if number == 3 and not batch
                else command(number).model_dump_json().encode()
            )
            await producer.send_and_wait(
                topic.name, value, partition=0, headers=odd if number in {2, 3} else []
            )
    seen: list[str] = []

    async def one(event: events.ScenarioCreateRequested) -> None:
        seen.append(event.event_id)

    async def many(found: list[events.ScenarioCreateRequested]) -> None:
        seen.extend(event.event_id for event in found)

    broker = kafka_broker(settings, "test")
    row = route(
        many if batch else one, topic, group=f"g-{topic.name}", **({"batch": True} if batch else {})
    )
    broker.include_router(KafkaRouter(handlers=(row,)))
    async with broker:
        await broker.start()
        expected = [f"c{number}" for number in range(5) if batch or number != 3]
        await until(lambda: seen == expected)
        if not batch:
            (letter,) = await dead_letters(settings, topic, 1)
            assert [base64.b64decode(value) for _, value in letter.headers] == [
                b"00-a",
                b"\xff",
                b"",
            ]


async def test_bytes_that_are_no_event_are_dead_lettered_and_the_next_goes_through(settings, topic):
    await ensure_topics(settings.kafka_bootstrap, (topic,))
    seen: list[str] = []

    async def handler(event: events.ScenarioCreateRequested) -> None:
        seen.append(event.event_id)

    broker = consuming(settings, topic, handler)
    async with broker:
        await broker.start()
        for body in (
            b"not json",
            b"\xff\xfe",
            b'{"type": "something.else.v9", "scenario": "s"}',
            b"[]",
            b"",
            b"[" * 100_000,
            b'{"scenario": "\\ud800"}',
        ):
            await broker.publish(
                body, topic=topic.name, key=b"s", headers={"content-type": "application/json"}
            )
        await KafkaPublisher(broker).publish(command(1), topic)
        await until(lambda: seen == ["c1"])
        letters = await dead_letters(settings, topic, 7)
    assert [letter.offset for letter in letters] == [0, 1, 2, 3, 4, 5, 6]
    assert base64.b64decode(letters[1].value) == b"\xff\xfe"


async def test_an_event_whose_effect_was_not_finished_comes_again(settings, topic):
    await ensure_topics(settings.kafka_bootstrap, (topic,))
    started = asyncio.Event()
    seen: list[str] = []

    async def never_ends(event: events.ScenarioCreateRequested) -> None:
        started.set()
        await asyncio.sleep(3600)

    async def ends(event: events.ScenarioCreateRequested) -> None:
        seen.append(event.event_id)

    first = consuming(settings, topic, never_ends)
    await first.start()
    await KafkaPublisher(first).publish(command(1), topic)
    async with asyncio.timeout(15):
        await started.wait()
    await first.stop()  # as a process that is told to end in the middle of its work
    second = consuming(settings, topic, ends)
    async with second:
        await second.start()
        await until(lambda: seen == ["c1"])


async def test_topics_are_created_once_with_their_partitions(settings, topic):
    assert await ensure_topics(settings.kafka_bootstrap, (topic,)) == [topic.name, topic.dead]
    assert await ensure_topics(settings.kafka_bootstrap, (topic,)) == []


async def test_publishing_without_a_broker_says_so():
    from faststream.exceptions import IncorrectState

    broker = kafka_broker(SystemSettings(kafka_bootstrap="127.0.0.1:1"), "test")
    with pytest.raises((Unavailable, IncorrectState)):
        await KafkaPublisher(broker).publish(command(1), Topic("t", (), (), (), ""))
