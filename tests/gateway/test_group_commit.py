"""Group commit: which events travel together, in which order, and which are not sent any more."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError, MessageSizeTooLargeError
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.memory_records import MemoryRecords

from reefcommon import topics
from reefcommon.ids import time_ordered_hex
from reefkit.bodies import FilesystemBodies
from reefkit.kafka_topics import ensure_topics
from services.gateway.domain.log_event import LogEvent
from services.gateway.log.group_commit import GroupCommit, hash_of
from services.gateway.log.kafka import KafkaRecordLog, headers_of

PARTITIONS = 4


@dataclass
class Producer:
    """AIOKafkaProducer in memory. `hold`: acknowledgements wait for it; `errors`: raised in turn."""

    rounds: list[dict[int, list[bytes]]] = field(default_factory=list)
    errors: list[Exception | None] = field(default_factory=list)
    raises: Exception | None = None
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    known: bool = True
    batch_bytes: int = 1 << 16
    _round: dict[int, list[bytes]] | None = None

    async def partitions_for(self, topic: str) -> set[int]:
        if not self.known and self.raises is not None:
            raise self.raises
        return set(range(PARTITIONS))

    def create_batch(self) -> BatchBuilder:
        return BatchBuilder(self.batch_bytes, 0)

    async def send_batch(self, batch: BatchBuilder, topic: str, *, partition: int) -> Any:
        assert batch.closed()
        if self.raises is not None:
            raise self.raises
        if self._round is None:
            self._round = {}
            self.rounds.append(self._round)
            asyncio.get_running_loop().call_soon(lambda: setattr(self, "_round", None))
        self._round[partition] = values(batch._build())
        error = self.errors.pop(0) if self.errors else None
        return asyncio.ensure_future(self._acknowledge(error))

    async def _acknowledge(self, error: Exception | None) -> None:
        await self.hold.wait()
        if error is not None:
            raise error


def values(packed: bytes) -> list[bytes]:
    records, found = MemoryRecords(bytes(packed)), []
    while records.has_next():
        batch = records.next_batch()
        assert batch.validate_crc()
        found += [record.value for record in batch]
    return found


def commits(producer: Producer) -> GroupCommit:
    return GroupCommit(producer)  # type: ignore[arg-type]


def put(group: GroupCommit, shard: str, data: bytes) -> asyncio.Future[None]:
    return group.put(LogEvent("t", shard, "r-1", data, time.time()), [("a", b"b")])


def sent(producer: Producer) -> list[bytes]:
    return [value for batches in producer.rounds for batch in batches.values() for value in batch]


async def test_events_that_arrive_in_a_round_make_the_next_one() -> None:
    producer = Producer()
    group = commits(producer)
    first = put(group, "0000", b"first")
    await asyncio.sleep(0)
    others = [put(group, f"{n % 7:04x}", b"%d" % n) for n in range(50)]
    producer.hold.set()
    await asyncio.gather(first, *others)
    assert len(producer.rounds) == 2
    assert sum(map(len, producer.rounds[1].values())) == 50
    for batch in producer.rounds[1].values():
        assert batch == sorted(batch, key=int)


async def test_batches_are_bounded_and_stay_in_order() -> None:
    producer = Producer(batch_bytes=2000)
    producer.hold.set()
    group = commits(producer)
    data = [b"%03d" % n + b"x" * 700 for n in range(30)]
    await asyncio.gather(*(put(group, f"{n % 5:04x}", value) for n, value in enumerate(data)))
    by_partition: dict[int, list[bytes]] = {}
    for batches in producer.rounds:
        for partition, batch in batches.items():
            assert len(batch) <= 2
            by_partition.setdefault(partition, []).extend(batch)
    assert all(found == sorted(found) for found in by_partition.values())
    assert sorted(sent(producer)) == data
    await put(group, "0000", b"y" * 50_000)  # alone, it may be larger


async def test_a_small_event_does_not_overtake_a_large_one() -> None:
    producer = Producer(batch_bytes=2000)
    producer.hold.set()
    group = commits(producer)
    data = [b"%d" % n + b"x" * size for n, size in enumerate((1500, 1500, 10, 1500, 10))]
    await asyncio.gather(*(put(group, "0000", value) for value in data))
    assert sent(producer) == data


@pytest.mark.parametrize(
    "error", [MessageSizeTooLargeError(), KafkaConnectionError("cut")], ids=str
)
async def test_a_failed_batch_fails_its_own_events_alone(error: Exception) -> None:
    producer = Producer(errors=[error])
    producer.hold.set()
    group = commits(producer)
    shards = {hash_of(f"{n:04x}") % PARTITIONS: f"{n:04x}" for n in range(50)}
    failed, fine = put(group, shards[0], b"a"), put(group, shards[1], b"b")
    with pytest.raises(type(error)):
        await failed
    await fine
    await put(group, shards[0], b"c")


@pytest.mark.parametrize("known", [True, False])
async def test_a_producer_that_takes_no_batch_fails_its_events(known: bool) -> None:
    producer = Producer(raises=KafkaConnectionError("closed"), known=known)
    async with asyncio.timeout(60):
        with pytest.raises(KafkaConnectionError):
            await put(commits(producer), "0000", b"x")


async def test_a_caller_that_timed_out_is_not_sent_but_a_cancelled_one_is() -> None:
    """An event that timed out is in the spool: sent again it would come after later ones there."""
    producer = Producer()
    group = commits(producer)
    under_way = put(group, "0000", b"0")
    await asyncio.sleep(0)
    late, cut, last = (put(group, "0000", value) for value in (b"late", b"cut", b"last"))
    late.set_exception(TimeoutError())
    cut.cancel()
    producer.hold.set()
    await asyncio.gather(under_way, last)
    assert list(producer.rounds[1].values()) == [[b"cut", b"last"]]
    with pytest.raises(TimeoutError):
        await late
    await group.flush()


async def consumed(bootstrap: str, topic: str, done: Callable[[list[Any]], bool]) -> list[Any]:
    records: list[Any] = []
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(60):
            while not done(records):
                for batch in (await consumer.getmany(timeout_ms=200)).values():
                    records += batch
    return records


@pytest.mark.broker
async def test_keys_lie_where_the_library_puts_them(kafka_bootstrap: str) -> None:
    own = replace(topics.INFERENCES, name=f"commits.{time_ordered_hex()}")
    await ensure_topics(kafka_bootstrap, (own,))
    keys = {time_ordered_hex()[-4:] for _ in range(40)}
    async with AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, acks="all") as producer:
        group = GroupCommit(producer)
        await asyncio.gather(
            *(group.put(LogEvent(own.name, key, "r", key.encode(), 5.25), []) for key in keys)
        )
        theirs = {
            key: (await producer.send_and_wait(own.name, b"theirs", key=key.encode())).partition
            for key in keys
        }
    records = await consumed(kafka_bootstrap, own.name, lambda found: len(found) >= 2 * len(keys))
    ours = [record for record in records if record.value != b"theirs"]
    assert {record.key.decode(): record.partition for record in ours} == theirs
    assert {record.timestamp for record in ours} == {5250}


@pytest.mark.broker
@pytest.mark.parametrize("traceparent", ["", "00-" + "a" * 32 + "-" + "b" * 16 + "-01"])
async def test_every_event_has_the_headers_of_faststream(
    kafka_bootstrap: str, tmp_path: Path, traceparent: str
) -> None:
    own = replace(topics.FEEDBACK, name=f"headers.{time_ordered_hex()}")
    await ensure_topics(kafka_bootstrap, (own,))
    log = KafkaRecordLog(
        kafka_bootstrap,
        FilesystemBodies(tmp_path / "bodies"),
        idempotence=False,
        ack_timeout_s=5.0,
    )
    await log.connect()
    events = [LogEvent(own.name, "s", f"id-{n}", b"{}", 1.0, traceparent) for n in range(3)]
    await log.append_all(events)
    await log.stop()
    for n, record in enumerate(await consumed(kafka_bootstrap, own.name, lambda r: len(r) >= 3)):
        assert record.headers == tuple(headers_of(events[n]))
        headers = dict(record.headers)
        assert headers["content-type"] == b"application/json"
        assert headers["correlation_id"] == b"id-%d" % n
        assert headers.get("traceparent", b"") == traceparent.encode()
