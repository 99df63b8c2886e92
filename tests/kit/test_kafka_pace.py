"""A consumer at rest looks seldom, misses nothing, and fetches as before after an event."""

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from reefkit import kafka_pace
from reefkit.kafka_pace import LOOK_MS, pace, pause_s
from reefkit.kafka_topics import ensure_topics

TOPIC, WAIT_MS = "reef.samples.v1", 400
GROUP = {"session_timeout_ms": 2000, "heartbeat_interval_ms": 300, "auto_offset_reset": "earliest"}


async def consumer(bootstrap: str, group: str | None) -> AIOKafkaConsumer:
    made = AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        fetch_max_wait_ms=WAIT_MS,
        **(GROUP if group else {}),
    )
    await made.start()
    pace(made)
    return made


async def until_wait_is(made: AIOKafkaConsumer, wait_ms: int) -> None:
    async with asyncio.timeout(10):
        while made._fetcher._fetch_max_wait_ms != wait_ms:
            await asyncio.sleep(0.02)


async def put(bootstrap: str, *values: bytes, partition: int = 0) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for value in values:
            await producer.send_and_wait(TOPIC, value, partition=partition)


@pytest.mark.broker
async def test_an_event_at_rest_ends_the_rest(
    own_kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_pace, "QUIET_AFTER_S", 0.5)
    await ensure_topics(own_kafka_bootstrap)
    made = await consumer(own_kafka_bootstrap, None)
    try:
        for value in (b"one", b"two"):
            await until_wait_is(made, LOOK_MS)
            await put(own_kafka_bootstrap, value)
            assert (await asyncio.wait_for(made.getone(), 5)).value == value
            await until_wait_is(made, WAIT_MS)
        await until_wait_is(made, LOOK_MS)
    finally:
        await asyncio.wait_for(made.stop(), 5)  # in a pause


@pytest.mark.broker
async def test_consumers_at_rest_share_their_partitions_anew(
    own_kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka_pace, "QUIET_AFTER_S", 0.5)
    await ensure_topics(own_kafka_bootstrap)
    first = await consumer(own_kafka_bootstrap, "shared")
    await until_wait_is(first, LOOK_MS)
    second = await consumer(own_kafka_bootstrap, "shared")
    try:
        async with asyncio.timeout(20):
            while not (first.assignment() and second.assignment()):
                await asyncio.sleep(0.05)
        await until_wait_is(first, LOOK_MS)
        for partition in range(4):
            await put(own_kafka_bootstrap, b"%d" % partition, partition=partition)
        found = set[bytes]()
        async with asyncio.timeout(10):
            while len(found) < 4:
                for each in (first, second):
                    for records in (await each.getmany(timeout_ms=200)).values():
                        found |= {record.value for record in records}
    finally:
        await first.stop()
        await second.stop()


class Fetcher:
    """Finds nothing, and counts."""

    def __init__(self) -> None:
        self._fetch_max_wait_ms, self.waits = WAIT_MS, list[int]()

    async def _proc_fetch_request(self, _assignment: Any, _node: int, _request: Any) -> bool:
        self.waits.append(self._fetch_max_wait_ms)
        return False


class Request:
    topics = ()


async def test_a_busy_consumer_makes_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    slept = list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(kafka_pace.asyncio, "sleep", sleep)
    made = type("Consumer", (), {"_fetcher": Fetcher()})
    expect = pace(made)  # type: ignore[arg-type]
    for quiet_after_s in (60.0, 0.0, 0.0):
        monkeypatch.setattr(kafka_pace, "QUIET_AFTER_S", quiet_after_s)
        await made._fetcher._proc_fetch_request(None, 0, Request)
    monkeypatch.setattr(kafka_pace, "QUIET_AFTER_S", 60.0)
    monkeypatch.setattr(kafka_pace.time, "monotonic", lambda: 1e9)
    expect()
    for _ in range(2):
        await made._fetcher._proc_fetch_request(None, 0, Request)
    assert made._fetcher.waits == [WAIT_MS, WAIT_MS, LOOK_MS, LOOK_MS, WAIT_MS]
    assert slept == [pause_s(WAIT_MS)] * 2


def test_another_client_fetches_as_before() -> None:
    made = type("Consumer", (), {"_fetcher": object()})
    pace(made)  # type: ignore[arg-type]
    assert not hasattr(made._fetcher, "_proc_fetch_request")


class Away(Fetcher):
    """Takes a cancellation for an empty answer, as aiokafka does."""

    async def _proc_fetch_request(self, _assignment: Any, _node: int, _request: Any) -> bool:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return False
        return True


async def test_a_fetch_that_is_cancelled_makes_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_pace, "QUIET_AFTER_S", 0.0)
    monkeypatch.setattr(kafka_pace, "pause_s", lambda _wait_ms: 60.0)
    made = type("Consumer", (), {"_fetcher": Away()})
    pace(made)  # type: ignore[arg-type]
    task = asyncio.create_task(made._fetcher._proc_fetch_request(None, 0, Request))
    await asyncio.sleep(0.05)
    task.cancel()
    ended, _ = await asyncio.wait([task], timeout=2)
    assert ended
