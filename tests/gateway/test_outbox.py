"""Group commit: what is sent together, what goes the ordinary way, and what is not sent any more."""

import asyncio
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import (
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    MessageSizeTooLargeError,
)
from aiokafka.record.memory_records import MemoryRecords

from reefcommon import topics
from reefcommon.ids import time_ordered_hex
from reefkit.bus import ensure_topics
from services.gateway.log.outbox import Outbox, ProduceNow

PARTITIONS = 4


@dataclass
class Node:
    """A broker's node, its cluster, and the ordinary way, all in one. `codes` is what it answers; an exception is raised instead."""

    codes: list[Any] = field(default_factory=list)
    requests: list[ProduceNow] = field(default_factory=list)
    ordinary: list[bytes] = field(default_factory=list)
    ordinary_error: Exception | None = None
    ordinary_raises: Exception | None = None
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    leader: int | None = 1

    @property
    def client(self) -> "Node":
        return self

    @property
    def cluster(self) -> "Node":
        return self

    def partitions_for_topic(self, topic: str) -> set[int]:
        return set(range(PARTITIONS))

    def leader_for_partition(self, at: TopicPartition) -> int | None:
        return self.leader

    async def _answer(self, request: ProduceNow) -> dict[tuple[str, int], int]:
        self.requests.append(request)
        await self.hold.wait()
        code = self.codes.pop(0) if self.codes else 0
        if isinstance(code, Exception):
            raise code
        return {("t", partition): code for partition in range(PARTITIONS)}

    async def send(self, *args: Any, **named: Any) -> Any:
        if isinstance(args[1], ProduceNow):
            return await self._answer(args[1])
        if self.ordinary_raises is not None:
            raise self.ordinary_raises
        self.ordinary.append(args[1])
        sent = asyncio.get_running_loop().create_future()
        if self.ordinary_error is not None:
            sent.set_exception(self.ordinary_error)
        else:
            sent.set_result(None)
        return sent


def outbox(
    node: Node, *, direct: bool = True, batch_bytes: int = 1 << 16, request_bytes: int = 1 << 20
) -> Outbox:
    return Outbox(
        node,
        direct=direct,
        linger_s=0.0,
        timeout_ms=1000,
        batch_bytes=batch_bytes,
        request_bytes=request_bytes,
    )


def values(request: ProduceNow) -> dict[int, list[bytes]]:
    """What a request holds, taken apart by the library."""
    body = BytesIO(request.encode())
    body.read(2 + 2 + 4)
    assert int.from_bytes(body.read(4), "big") == 1
    assert body.read(int.from_bytes(body.read(2), "big")) == b"t"
    found: dict[int, list[bytes]] = {}
    for _ in range(int.from_bytes(body.read(4), "big")):
        partition = int.from_bytes(body.read(4), "big")
        records = MemoryRecords(body.read(int.from_bytes(body.read(4), "big")))
        found[partition] = []
        while records.has_next():
            batch = records.next_batch()
            assert batch.validate_crc()
            found[partition] += [record.value for record in batch]
    return found


async def test_what_comes_while_a_request_is_under_way_makes_the_next_one_in_order():
    node = Node()
    box = outbox(node)
    first = box.put("t", b"0000", b"first", [])
    await asyncio.sleep(0)
    others = [box.put("t", b"%04x" % (n % 7), b"%d" % n, [("a", b"b")]) for n in range(50)]
    node.hold.set()
    await asyncio.gather(first, *others)
    assert len(node.requests) == 2
    sent = values(node.requests[1])
    assert sum(len(found) for found in sent.values()) == 50
    assert all(found == sorted(found, key=int) for found in sent.values())
    assert not node.ordinary


@pytest.mark.parametrize(
    "answer",
    [6, 7, KafkaConnectionError("cut"), OSError("cut"), IncompatibleBrokerVersion("old")],
    ids=str,
)
async def test_what_is_not_simply_acknowledged_goes_the_ordinary_way_in_order(answer: Any):
    node = Node(codes=[answer])
    node.hold.set()
    box = outbox(node)
    await asyncio.gather(*(box.put("t", b"0000", b"%d" % n, []) for n in range(5)))
    assert node.ordinary == [b"%d" % n for n in range(5)]
    await box.put("t", b"0000", b"5", [])
    asked_again = not isinstance(answer, IncompatibleBrokerVersion)
    assert len(node.requests) == 1 + asked_again
    assert len(node.ordinary) == 6 - asked_again


async def test_with_idempotence_or_without_a_leader_everything_goes_the_ordinary_way():
    for node, direct in ((Node(), False), (Node(leader=None), True), (Node(leader=-1), True)):
        await outbox(node, direct=direct).put("t", b"0000", b"x", [])
        assert (node.ordinary, node.requests) == ([b"x"], [])


async def test_the_ordinary_ways_error_is_the_callers():
    node = Node(codes=[10], ordinary_error=MessageSizeTooLargeError())
    node.hold.set()
    with pytest.raises(MessageSizeTooLargeError):
        await outbox(node).put("t", b"0000", b"x", [])


async def test_what_the_ordinary_way_does_not_even_queue_is_the_callers_too():
    node = Node(codes=[10], ordinary_raises=KafkaConnectionError("closed"))
    node.hold.set()
    async with asyncio.timeout(60):
        with pytest.raises(KafkaConnectionError):
            await outbox(node).put("t", b"0000", b"x", [])


async def test_whoever_stopped_waiting_meanwhile_is_not_sent_the_ordinary_way_either():
    """It is elsewhere by then; sent again it would come after what followed it there."""
    node = Node(codes=[6])
    box = outbox(node)
    late, other = (box.put("t", b"0000", value, []) for value in (b"late", b"other"))
    await asyncio.sleep(0)
    late.set_exception(TimeoutError())
    node.hold.set()
    await other
    assert node.ordinary == [b"other"]
    with pytest.raises(TimeoutError):
        await late


@pytest.mark.parametrize(
    ("batch_bytes", "request_bytes"), [(2000, 1 << 20), (1 << 16, 2000)], ids=["batch", "request"]
)
async def test_a_small_one_does_not_overtake_a_large_one_that_found_no_room(
    batch_bytes: int, request_bytes: int
):
    node = Node()
    node.hold.set()
    box = outbox(node, batch_bytes=batch_bytes, request_bytes=request_bytes)
    sent = [b"%d" % n + b"x" * size for n, size in enumerate((1500, 1500, 10, 1500, 10))]
    await asyncio.gather(*(box.put("t", b"0000", value, []) for value in sent))
    assert [
        value for request in node.requests for found in values(request).values() for value in found
    ] == sent


async def test_whoever_waited_too_long_is_not_sent_any_more_and_whoever_was_cancelled_is():
    node = Node()
    box = outbox(node)
    under_way = box.put("t", b"0000", b"0", [])
    await asyncio.sleep(0)
    late, cut, last = (box.put("t", b"0000", value, []) for value in (b"late", b"cut", b"last"))
    late.set_exception(TimeoutError())
    cut.cancel()
    node.hold.set()
    await asyncio.gather(under_way, last)
    assert list(values(node.requests[1]).values()) == [[b"cut", b"last"]]
    with pytest.raises(TimeoutError):
        await late
    await box.flush()


async def test_batches_and_requests_are_bounded_and_stay_in_order():
    node = Node()
    node.hold.set()
    box = outbox(node, batch_bytes=2000, request_bytes=5000)
    sent = [b"%03d" % n + b"x" * 700 for n in range(30)]
    await asyncio.gather(
        *(box.put("t", b"%04x" % (n % 5), value, []) for n, value in enumerate(sent))
    )
    by_partition: dict[int, list[bytes]] = {}
    for request in node.requests:
        assert len(request.encode()) < 7000
        for partition, found in values(request).items():
            by_partition.setdefault(partition, []).extend(found)
    assert all(found == sorted(found) for found in by_partition.values())
    assert sorted(value for found in by_partition.values() for value in found) == sent
    await box.put("t", b"0000", b"y" * 50_000, [])  # alone, it may be larger


@pytest.mark.broker
async def test_a_real_broker_takes_it_and_keys_lie_where_the_library_puts_them(
    kafka_bootstrap: str,
):
    own = replace(topics.INFERENCES, name=f"outbox.{time_ordered_hex()}")
    await ensure_topics(kafka_bootstrap, (own,))
    keys = [time_ordered_hex()[-4:].encode() for _ in range(40)]
    mark = time_ordered_hex().encode()
    async with AIOKafkaProducer(
        bootstrap_servers=kafka_bootstrap, acks="all", enable_idempotence=False
    ) as producer:
        await producer.partitions_for(own.name)
        box = Outbox(
            producer,
            direct=True,
            linger_s=0.001,
            timeout_ms=5000,
            batch_bytes=1 << 16,
            request_bytes=1 << 20,
        )
        await asyncio.gather(
            *(box.put(own.name, key, mark + key, [("traceparent", b"00")]) for key in keys)
        )
        await box.flush()
        theirs = {
            key: (await producer.send_and_wait(own.name, b"theirs", key=key)).partition
            for key in keys
        }
    ours: dict[bytes, int] = {}
    async with AIOKafkaConsumer(
        own.name, bootstrap_servers=kafka_bootstrap, auto_offset_reset="earliest"
    ) as consumer:
        async with asyncio.timeout(60):
            while len(ours) < len(set(keys)):
                for at, records in (await consumer.getmany(timeout_ms=200)).items():
                    for record in records:
                        if record.value.startswith(mark):
                            assert record.headers == (("traceparent", b"00"),)
                            ours[record.key] = at.partition
    assert ours == theirs
