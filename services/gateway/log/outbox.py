"""Group commit: events on their way to the broker, one request to a node at a time; what comes meanwhile makes the next request.

    put --> lane of the partition's leader --all that wait, a batch a partition--> produce request --acknowledged--> futures

The client library's own queue costs more than the rest of an exchange: a task, three wake-ups and the request taken apart field by field.
Here a request is packed at once (Kafka protocol, Produce version 7) and goes through the library's connections. Whatever is not simply
acknowledged goes the library's ordinary way, which knows retries, new leaders and sequence numbers; so does everything where idempotence
is on.
"""

import asyncio
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from typing import Any, ClassVar, Self

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import IncompatibleBrokerVersion, KafkaError
from aiokafka.partitioner import murmur2
from aiokafka.record.default_records import DefaultRecordBatchBuilder

PRODUCE, VERSION = 0, 7
_HEAD = struct.Struct(">hhih")
_INT = struct.Struct(">i")
_PARTITION = struct.Struct(">ihqqq")
Headers = Sequence[tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Entry:
    """One event. `done` ends with its acknowledgement; an error there means that it is not wanted any more."""

    at: TopicPartition
    key: bytes
    value: bytes
    headers: Headers
    done: asyncio.Future[None]

    @property
    def wanted(self) -> bool:
        """Whoever stopped waiting in time has put it elsewhere; a caller that was cancelled has not."""
        return not self.done.done() or self.done.cancelled()


class Outbox:
    """The lanes of one started producer. `batch_bytes` bounds a batch, `request_bytes` a request; one event may be larger than a batch."""

    def __init__(
        self,
        producer: AIOKafkaProducer,
        *,
        direct: bool,
        linger_s: float,
        timeout_ms: int,
        batch_bytes: int,
        request_bytes: int,
    ) -> None:
        self._producer = producer
        self._cluster = producer.client.cluster
        self._direct = direct
        self._linger_s = linger_s
        self._timeout_ms = timeout_ms
        self._batch_bytes = batch_bytes
        self._request_bytes = request_bytes
        self._lanes: dict[int, list[Entry]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def put(self, topic: str, key: bytes, value: bytes, headers: Headers) -> asyncio.Future[None]:
        """Hand over one event. The future raises KafkaError where the broker does not take it."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        count = len(self._cluster.partitions_for_topic(topic) or ())
        entry = Entry(
            TopicPartition(topic, hash_of(key) % count if count else -1), key, value, headers, done
        )
        node = self._cluster.leader_for_partition(entry.at)
        node = -1 if node is None else node
        self._lanes.setdefault(node, []).append(entry)
        if node not in self._tasks:
            self._tasks[node] = loop.create_task(self._drain(node))
        return done

    async def flush(self) -> None:
        """Returns once nothing is under way."""
        while self._tasks:
            await asyncio.wait(self._tasks.values())

    async def _drain(self, node: int) -> None:
        try:
            while self._lanes.get(node):
                if self._linger_s and self._direct:
                    await asyncio.sleep(self._linger_s)
                entries = [entry for entry in self._lanes.pop(node, ()) if entry.wanted]
                if not self._direct or node < 0:
                    await self._ordinary(entries)
                    continue
                batches, rest = self._batches(entries)
                if rest:
                    self._lanes[node] = rest + self._lanes.get(node, [])
                if batches:
                    await self._send(node, batches)
        finally:
            del self._tasks[node]

    def _batches(self, entries: list[Entry]) -> tuple[list["_Batch"], list[Entry]]:
        """A batch a partition, and what did not fit: with it all later events of its partition."""
        batches: dict[TopicPartition, _Batch] = {}
        rest: list[Entry] = []
        full: set[TopicPartition] = set()
        size = 0
        for entry in entries:
            if entry.at in full or (size and size + len(entry.value) > self._request_bytes):
                full.add(entry.at)
                rest.append(entry)
                continue
            batch = batches.get(entry.at)
            if batch is None:
                batch = batches[entry.at] = _Batch(entry.at, self._batch_bytes)
            if batch.add(entry):
                size += len(entry.value)
            else:
                full.add(entry.at)
                rest.append(entry)
        return list(batches.values()), rest

    async def _send(self, node: int, batches: list["_Batch"]) -> None:
        try:
            codes = await self._producer.client.send(node, ProduceNow(batches, self._timeout_ms))
        except (KafkaError, OSError) as error:
            if isinstance(error, IncompatibleBrokerVersion):
                self._direct = False
            codes = {}
        failed = []
        for batch in batches:
            if codes.get((batch.at.topic, batch.at.partition)) != 0:
                failed += batch.entries
                continue
            for entry in batch.entries:
                if not entry.done.done():
                    entry.done.set_result(None)
        if failed:
            await self._ordinary([entry for entry in failed if entry.wanted])

    async def _ordinary(self, entries: list[Entry]) -> None:
        """The library's way, with its retries."""
        for entry in entries:
            try:
                sent = await self._producer.send(
                    entry.at.topic, entry.value, key=entry.key, headers=entry.headers
                )
            except (KafkaError, OSError) as error:
                if not entry.done.done():
                    entry.done.set_exception(error)
                continue
            sent.add_done_callback(_passing_to(entry.done))


def _passing_to(done: asyncio.Future[None]) -> Callable[[asyncio.Future[Any]], None]:
    def pass_on(sent: asyncio.Future[Any]) -> None:
        error = None if sent.cancelled() else sent.exception()
        if done.done():
            return
        if sent.cancelled():
            done.cancel()
        elif error is not None:
            done.set_exception(error)
        else:
            done.set_result(None)

    return pass_on


@lru_cache(maxsize=65_536)
def hash_of(key: bytes) -> int:
    """Where Kafka's own clients put a key, modulo the number of partitions."""
    return int(murmur2(key)) & 0x7FFFFFFF


class _Batch:
    """The events of one request that go to one partition."""

    __slots__ = ("_builder", "at", "entries")

    def __init__(self, at: TopicPartition, batch_bytes: int) -> None:
        self.at = at
        self.entries: list[Entry] = []
        self._builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, batch_bytes)

    def add(self, entry: Entry) -> bool:
        """False where it is full. The first event always fits."""
        made = self._builder.append(
            len(self.entries), None, key=entry.key, value=entry.value, headers=entry.headers
        )
        if made is not None:
            self.entries.append(entry)
        return made is not None

    def packed(self) -> bytes:
        """Partition and records, as a produce request has them."""
        records = self._builder.build()
        return b"".join((_INT.pack(self.at.partition), _INT.pack(len(records)), records))


class ProduceNow:
    """A produce request in one piece, in the form that the library's connection sends: what it asks of its own requests."""

    def __init__(self, batches: list[_Batch], timeout_ms: int) -> None:
        by_topic: dict[str, list[bytes]] = {}
        for batch in batches:
            by_topic.setdefault(batch.at.topic, []).append(batch.packed())
        # no transaction; acks: all replicas
        parts = [struct.pack(">hhii", -1, -1, timeout_ms, len(by_topic))]
        for topic, packed in by_topic.items():
            name = topic.encode()
            parts += [struct.pack(">h", len(name)), name, _INT.pack(len(packed)), *packed]
        self._body = b"".join(parts)
        self._head = b""

    def prepare(self, versions: dict[int, tuple[int, int]]) -> Self:
        """Raises IncompatibleBrokerVersion."""
        lowest, highest = versions.get(PRODUCE, (0, 0))
        if not lowest <= VERSION <= highest:
            raise IncompatibleBrokerVersion(
                f"the broker takes produce requests of versions {lowest} to {highest}, not {VERSION}"
            )
        return self

    def build_request_header(self, correlation_id: int, client_id: str) -> "_Bytes":
        """The header of all requests."""
        name = client_id.encode()
        return _Bytes(_HEAD.pack(PRODUCE, VERSION, correlation_id, len(name)) + name)

    def encode(self) -> bytes:
        """What follows the header."""
        return self._body

    def parse_response_header(self, frame: BytesIO) -> "_Correlation":
        """Which request is answered."""
        return _Correlation(_INT.unpack(frame.read(4))[0])

    class RESPONSE_TYPE:
        """What an answer is read with."""

        API_KEY: ClassVar[int] = PRODUCE

        @staticmethod
        def decode(frame: BytesIO) -> dict[tuple[str, int], int]:
            """(topic, partition) -> the broker's error code, 0 where all replicas have the batch."""
            data = frame.read()
            (topics,), position = _INT.unpack_from(data), 4
            codes = {}
            for _ in range(topics):
                length = int.from_bytes(data[position : position + 2], "big")
                name = data[position + 2 : position + 2 + length].decode()
                position += 2 + length
                (partitions,), position = _INT.unpack_from(data, position), position + 4
                for _ in range(partitions):
                    partition, code, *_offsets = _PARTITION.unpack_from(data, position)
                    codes[name, partition] = code
                    position += _PARTITION.size
            return codes


@dataclass(frozen=True, slots=True)
class _Bytes:
    data: bytes

    def encode(self) -> bytes:
        return self.data


@dataclass(frozen=True, slots=True)
class _Correlation:
    correlation_id: int
