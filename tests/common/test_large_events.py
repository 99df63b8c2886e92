"""Events of any size on the real broker: they travel as claims, and stop no consumer."""

import asyncio
import base64
import json
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from aiokafka.errors import (
    KafkaConnectionError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    TopicAuthorizationFailedError,
)
from faststream.kafka import KafkaRouter

from reefcommon import events
from reefcommon.errors import Poison, Unavailable
from reefcommon.settings import SystemSettings
from reefcommon.topics import Topic
from reefkit import bodies, bus, guard
from reefkit.bus import KafkaPublisher, kafka_broker, route
from reefkit.kafka_topics import ensure_topics
from reefkit.ops import Health
from reefkit.retry import RetryPolicy
from tests.replay.reading import everything


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setenv("REEF_KAFKA_SESSION_TIMEOUT_MS", "1500")
    monkeypatch.setattr(bus, "GRACEFUL_STOP_S", 0.5)
    monkeypatch.setattr(guard, "RETRY", RetryPolicy(0.01, 0.05))


@pytest.fixture
def topic() -> Topic:
    name = f"test.large.{uuid.uuid4().hex[:8]}"
    kinds = (events.CandidateProposed, events.SampleReady)
    return Topic(name, kinds, (), (), "a test", partitions=1, retention=timedelta(days=1))


def candidate(number: int, metrics: int = 0) -> events.CandidateProposed:
    return events.CandidateProposed(
        event_id=f"c{number}", at=events.utc_now(), scenario="s", kind="lora",
        content_id="x", base_release_id="r0",
        metrics={f"layer/{n}/gradient_norm": n / 7 for n in range(metrics)},
    )  # fmt: skip


async def until(condition, timeout_s=30.0):
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.02)


def consuming(settings, topic, handler, **options):
    broker = kafka_broker(settings, f"test-{topic.name}")
    row = route(handler, topic, group=topic.name, **options)
    broker.include_router(KafkaRouter(handlers=(row,)))
    return broker


@pytest.mark.broker
@pytest.mark.parametrize("batch", [False, True])
async def test_large_events_come_whole_in_their_order(kafka_bootstrap, topic, tmp_path, batch):
    settings = SystemSettings(kafka_bootstrap=kafka_bootstrap, state_dir=tmp_path)
    await ensure_topics(kafka_bootstrap, (topic,))
    seen: list[events.CandidateProposed] = []

    async def one(event: events.CandidateProposed) -> None:
        seen.append(event)

    async def many(batch: list[events.CandidateProposed]) -> None:
        seen.extend(batch)

    sent = [candidate(0), candidate(1, metrics=60_000), candidate(2), candidate(3, metrics=300_000)]
    broker = consuming(
        settings, topic, many if batch else one, **({"batch": True} if batch else {})
    )
    async with broker:
        await broker.connect()
        for event in sent:
            await KafkaPublisher(broker).publish(event, topic)
        await broker.start()
        await until(lambda: len(seen) == len(sent))
    assert seen == sent
    for record in await everything(kafka_bootstrap, topic.name):
        named = json.loads(record.value)
        assert (named["type"], named["scenario"]) == ("candidate.proposed.v1", "s")
        assert len(record.value) < 1000


@pytest.mark.broker
async def test_a_batch_of_large_events_is_handled_in_pieces(
    kafka_bootstrap, topic, tmp_path, monkeypatch
):
    """Claims are small: as many as a batch may have would not fit into memory together. A piece
    that fails is tried again, and no other."""
    monkeypatch.setattr(guard, "PIECE_BYTES", 6_000_000)
    settings = SystemSettings(kafka_bootstrap=kafka_bootstrap, state_dir=tmp_path)
    await ensure_topics(kafka_bootstrap, (topic,))
    pieces: list[list[str]] = []
    failures = [Unavailable("once")]

    async def many(batch: list[events.CandidateProposed]) -> None:
        pieces.append([event.event_id for event in batch])
        if len(pieces) == 2:
            raise failures.pop()

    broker = consuming(settings, topic, many, batch=True, batch_timeout_ms=2000)
    async with broker:
        await broker.connect()
        for number in range(6):
            metrics = 60_000 if number % 2 else 0
            await KafkaPublisher(broker).publish(candidate(number, metrics), topic)
        await broker.start()
        await until(lambda: pieces and pieces[-1][-1] == "c5")
    assert pieces == [["c0", "c1", "c2", "c3", "c4"], ["c5"], ["c5"]]


@pytest.mark.broker
async def test_a_claim_without_a_body_is_dead_and_the_next_goes_on(
    kafka_bootstrap, topic, tmp_path, monkeypatch
):
    """Waited for first; a body that was changed is dead at once. The letter keeps the claim."""
    monkeypatch.setattr(guard, "BODY_WAIT_S", 0.5)
    settings = SystemSettings(kafka_bootstrap=kafka_bootstrap, state_dir=tmp_path)
    await ensure_topics(kafka_bootstrap, (topic,))
    seen: list[str] = []

    async def many(batch: list[events.CandidateProposed]) -> None:
        seen.extend(event.event_id for event in batch)

    broker = consuming(settings, topic, many, batch=True)
    async with broker:
        await broker.connect()
        for number, metrics in ((1, 60_000), (2, 70_000), (3, 0)):
            await KafkaPublisher(broker).publish(candidate(number, metrics), topic)
        first, second = sorted(broker.guard.bodies.root.iterdir(), key=lambda x: x.stat().st_size)
        first.unlink()
        second.write_bytes(b"{}")
        await broker.start()
        await until(lambda: seen == ["c3"])
    letters = [
        events.DeadLettered.model_validate_json(record.value)
        for record in await everything(kafka_bootstrap, topic.dead)
    ]
    assert {letter.offset: letter.reason.partition(":")[0] for letter in letters} == {
        0: f"the body {first.name} is not in {first.parent}, waited for 0.5 s",
        1: "Poison",
    }
    assert bodies.CLAIM_HEADER in dict(letters[0].headers)


@pytest.mark.broker
async def test_a_dead_letter_of_megabytes_is_written(kafka_bootstrap, topic, tmp_path):
    settings = SystemSettings(kafka_bootstrap=kafka_bootstrap, state_dir=tmp_path)
    await ensure_topics(kafka_bootstrap, (topic,))
    seen: list[str] = []

    async def refuses(event: events.CandidateProposed) -> None:
        if event.metrics:
            raise Poison("too many metrics")
        seen.append(event.event_id)

    broker = consuming(settings, topic, refuses)
    async with broker:
        await broker.connect()
        # As an older version sent it: whole, in one message.
        whole = candidate(1, metrics=20_000).model_dump_json().encode()
        await broker.publish(whole, topic=topic.name, key=b"s")
        await KafkaPublisher(broker).publish(candidate(2, metrics=300_000), topic)
        await KafkaPublisher(broker).publish(candidate(3), topic)
        await broker.start()
        await until(lambda: seen == ["c3"])
    letters = []
    for record in await everything(kafka_bootstrap, topic.dead):
        value = await bodies.whole_value(record.value, record.headers, broker.guard.bodies)
        letters.append(events.DeadLettered.model_validate_json(value))
    assert [letter.reason for letter in letters] == ["Poison: too many metrics"] * 2
    assert len(base64.b64decode(letters[0].value)) > 800_000
    # The letter of a claim is the claim, so that it can be sent again as it was.
    assert len(base64.b64decode(letters[1].value)) < 1000
    assert bodies.CLAIM_HEADER in dict(letters[1].headers)


class Refusing:
    """A broker whose sends end with this error."""

    def __init__(self, error: Exception, root: Path) -> None:
        self.error = error
        self.guard = kafka_broker(SystemSettings(state_dir=root), "refusing").guard

    async def publish(self, *_args, **_options) -> None:
        raise self.error


@pytest.mark.parametrize("error", [MessageSizeTooLargeError, RecordListTooLargeError])
async def test_a_message_that_is_refused_for_itself_is_poison(topic, tmp_path, error):
    with pytest.raises(Poison, match="refuses the event c1"):
        await KafkaPublisher(Refusing(error(), tmp_path)).publish(candidate(1), topic)


@pytest.mark.parametrize("error", [KafkaConnectionError, TopicAuthorizationFailedError])
async def test_a_broker_that_is_away_or_set_up_wrongly_is_waited_for(topic, tmp_path, error):
    with pytest.raises(Unavailable, match=error.__name__):
        await KafkaPublisher(Refusing(error(), tmp_path)).publish(candidate(1), topic)


@pytest.mark.broker
@pytest.mark.parametrize(
    "error", [Unavailable("the store is full"), KeyError("a bug")], ids=["away", "mistake"]
)
async def test_a_retry_without_progress_is_seen(
    kafka_bootstrap, topic, tmp_path, monkeypatch, error
):
    """In readiness and status, with its cause and its beginning; and no more once it is over."""
    monkeypatch.setattr(guard, "SHOWN_AFTER_S", 0.2)
    monkeypatch.setattr(guard, "MAX_ATTEMPTS", 10_000)
    settings = SystemSettings(kafka_bootstrap=kafka_bootstrap, state_dir=tmp_path)
    await ensure_topics(kafka_bootstrap, (topic,))
    mended = asyncio.Event()

    async def fails(_event: events.CandidateProposed) -> None:
        if not mended.is_set():
            raise error

    broker = consuming(settings, topic, fails)
    health = Health("test", broker=broker)
    async with broker:
        await broker.start()
        await KafkaPublisher(broker).publish(candidate(1), topic)
        async with asyncio.timeout(20):
            while not (failures := await health.failures()):
                await asyncio.sleep(0.05)
        (reason,) = failures.values()
        assert list(failures) == [f"waiting {topic.name}"]
        assert str(error.args[0]) in reason
        assert "since 20" in reason
        assert (await health.status())["failures"] != {}
        mended.set()
        async with asyncio.timeout(20):
            while await health.failures():
                await asyncio.sleep(0.05)
