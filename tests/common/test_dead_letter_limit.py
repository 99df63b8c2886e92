"""Too many dead letters in a while: a consumer stops and says so, rather than throw a whole topic away."""

import asyncio
import uuid

import pytest
from aiokafka import AIOKafkaConsumer
from faststream.kafka import KafkaRouter

from reefcommon import events
from reefcommon.errors import Poison
from reefcommon.settings import SystemSettings
from reefcommon.topics import Topic
from reefkit import bus
from reefkit.bus import KafkaPublisher, kafka_broker, lags, route
from reefkit.dead_letter_limit import DeadLetterLimit, TooManyDead
from reefkit.kafka_topics import ensure_topics
from reefkit.ops import Health


class Clock:
    at = 0.0

    def __call__(self) -> float:
        return self.at


def allowed(clock: Clock, limit: int = 3, share: float = 0.5) -> DeadLetterLimit:
    return DeadLetterLimit("test-limit", limit, share, 60.0, clock)


def test_few_dead_letters_are_fine_whatever_their_share():
    one = allowed(Clock())
    for _ in range(3):
        one.bury("x")
    with pytest.raises(TooManyDead, match="3 of 3 events of the last 60 s were dead letters"):
        one.bury("the last straw")
    assert "the last straw" in (one.reason or "")


def test_many_are_fine_among_many_more():
    one = allowed(Clock())
    one.done(1000)
    for _ in range(999):
        one.bury("x")
    one.bury("x")
    with pytest.raises(TooManyDead):
        one.bury("x")


def test_the_same_letter_written_again_is_one():
    """A broker that does not acknowledge dead letters for a while is no flood of them; a letter that comes much later is a new one."""
    clock = Clock()
    one = allowed(clock)
    for _ in range(50):
        one.bury("x", "dead-1")
        one.bury("x", "dead-2")
    clock.at += 61
    for letter in ("dead-1", "dead-2", "dead-3", "dead-3"):
        one.bury("x", letter)
    with pytest.raises(TooManyDead, match="3 of 3 events"):
        one.bury("x", "dead-4")
    with pytest.raises(TooManyDead):
        one.bury("x", "dead-1")


def test_the_window_moves_and_a_limit_that_was_reached_stays():
    clock = Clock()
    one = allowed(clock)
    for _ in range(20):
        one.bury("x")
        clock.at += 25  # never more than three in a minute
    one.done(10)
    clock.at += 61
    for _ in range(3):
        one.bury("x")
    with pytest.raises(TooManyDead):
        one.bury("x")
    clock.at += 3600
    with pytest.raises(TooManyDead):
        one.bury("x")


@pytest.mark.broker
async def test_a_consumer_stops_keeps_its_place_and_goes_on_after_it_was_mended(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
):
    """E4, its other side: a version that takes every event for poison buries a few, not the topic."""
    monkeypatch.setattr(bus, "GRACEFUL_STOP_S", 0.5)  # the stopped event waits for a person
    name = f"limit-{uuid.uuid4().hex[:8]}"
    topic = Topic(name, (events.ScenarioCreateRequested,), (), (), "", partitions=1)
    settings = SystemSettings(kafka_bootstrap=kafka_bootstrap, dead_letters_limit=3)
    await ensure_topics(kafka_bootstrap, (topic,))
    seen: list[str] = []

    async def broken(event: events.ScenarioCreateRequested) -> None:
        raise Poison(f"cannot read {event.event_id}")

    async def mended(event: events.ScenarioCreateRequested) -> None:
        seen.append(event.event_id)

    broker = kafka_broker(settings, name)
    broker.include_router(KafkaRouter(handlers=(route(broken, topic, group=name),)))
    health = Health(name, broker=broker)
    async with broker:
        await broker.start()
        for number in range(10):
            event = events.ScenarioCreateRequested(
                event_id=f"c{number}", at=events.utc_now(), scenario="s"
            )
            await KafkaPublisher(broker).publish(event, topic)
        async with asyncio.timeout(60):
            while not (failures := await health.failures()):
                await asyncio.sleep(0.05)
        assert "3 of 3 events" in failures["dead_letters"]
        assert "cannot read c3" in failures["dead_letters"]
        assert "reef dlq list" in failures["dead_letters"]
        async with asyncio.timeout(60):
            while not (rows := await lags(broker)) or rows[0].position != 3:
                await asyncio.sleep(0.05)
    after = kafka_broker(settings, name)
    after.include_router(KafkaRouter(handlers=(route(mended, topic, group=name),)))
    async with after:
        await after.start()
        async with asyncio.timeout(60):
            while len(seen) < 7:
                await asyncio.sleep(0.05)
        assert seen == [f"c{number}" for number in range(3, 10)]
        assert await Health(name, broker=after).failures() == {}
    async with AIOKafkaConsumer(
        topic.dead, bootstrap_servers=kafka_bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        letters = [await asyncio.wait_for(consumer.getone(), 20) for _ in range(3)]
    assert [events.DeadLettered.model_validate_json(letter.value).offset for letter in letters] == [
        0,
        1,
        2,
    ]
