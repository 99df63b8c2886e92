"""Group commit: the events that arrive while a round is under way make the next round."""

#     put --> queue --a batch for each partition--> producer --acknowledged--> futures
#
# The batches are those of the client library, so idempotence, retries and new leaders are its work.

import asyncio
from collections.abc import Sequence
from functools import lru_cache

from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.partitioner import murmur2
from aiokafka.producer.message_accumulator import BatchBuilder

from services.gateway.domain.log_event import LogEvent

Headers = Sequence[tuple[str, bytes]]


class Pending:
    """An event and the future of its acknowledgement."""

    __slots__ = ("done", "event", "headers")

    def __init__(self, event: LogEvent, headers: Headers, done: asyncio.Future[None]) -> None:
        self.event = event
        self.headers = headers
        self.done = done

    @property
    def abandoned(self) -> bool:
        """True if the caller timed out: it has spooled the event."""
        # The event of a caller that was only cancelled must still be sent.
        return self.done.done() and not self.done.cancelled()

    def end(self, error: Exception | None) -> None:
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)


class _Batch:
    __slots__ = ("builder", "pending")

    def __init__(self, builder: BatchBuilder) -> None:
        self.builder = builder
        self.pending: list[Pending] = []

    def add(self, pending: Pending) -> bool:
        # False if the batch is full. The first event always fits.
        event = pending.event
        added = self.builder.append(
            timestamp=int(event.at * 1000),
            key=event.shard.encode(),
            value=event.data,
            headers=pending.headers,
        )
        if added is not None:
            self.pending.append(pending)
        return added is not None

    def end(self, error: Exception | None) -> None:
        for pending in self.pending:
            pending.end(error)


class GroupCommit:
    """Sends events through a started producer, in rounds. The order within a partition is kept."""

    def __init__(self, producer: AIOKafkaProducer) -> None:
        self._producer = producer
        # All brokers of a cluster share the queue: with a queue for each, a partition that gets a
        # new leader could have its events in two of them.
        self._queue: list[Pending] = []
        self._task: asyncio.Task[None] | None = None

    def put(self, event: LogEvent, headers: Headers) -> asyncio.Future[None]:
        """Queue an event. If it is not acknowledged, the future raises KafkaError or OSError."""
        loop = asyncio.get_running_loop()
        pending = Pending(event, headers, loop.create_future())
        self._queue.append(pending)
        if self._task is None:
            self._task = loop.create_task(self._drain())
        return pending.done

    async def flush(self) -> None:
        """Return when no event is queued or under way."""
        while self._task is not None:
            await asyncio.wait([self._task])

    async def _drain(self) -> None:
        try:
            while self._queue:
                queue, self._queue = self._queue, []
                batches, rest = await self._batches(queue)
                self._queue = rest + self._queue
                await self._send(batches)
        finally:
            self._task = None

    async def _batches(
        self, queue: list[Pending]
    ) -> tuple[dict[TopicPartition, _Batch], list[Pending]]:
        # One batch a partition, and the events that did not fit into them, in order.
        batches: dict[TopicPartition, _Batch] = {}
        partitions: dict[str, int] = {}
        full: set[TopicPartition] = set()
        rest: list[Pending] = []
        for pending in queue:
            if pending.abandoned:
                continue
            topic = pending.event.topic
            if topic not in partitions:
                try:
                    partitions[topic] = len(await self._producer.partitions_for(topic))
                except (KafkaError, OSError) as error:
                    pending.end(error)
                    continue
            at = TopicPartition(topic, hash_of(pending.event.shard) % partitions[topic])
            batch = batches.get(at)
            if batch is None:
                batch = batches[at] = _Batch(self._producer.create_batch())
            # After the first that does not fit, all later ones of its partition wait with it.
            if at in full or not batch.add(pending):
                full.add(at)
                rest.append(pending)
        return batches, rest

    async def _send(self, batches: dict[TopicPartition, _Batch]) -> None:
        sent = []
        for at, batch in batches.items():
            # The library counts the events of a batch before it packs them: one that was added
            # in between would break the sequence numbers of an idempotent producer.
            batch.builder.close()
            try:
                acknowledged = await self._producer.send_batch(
                    batch.builder, at.topic, partition=at.partition
                )
            except (KafkaError, OSError) as error:
                batch.end(error)
            else:
                sent.append((batch, acknowledged))
        for batch, acknowledged in sent:
            try:
                await acknowledged
            except (KafkaError, OSError) as error:
                batch.end(error)
            else:
                batch.end(None)


@lru_cache(maxsize=65_536)
def hash_of(shard: str) -> int:
    """Kafka's hash of a key. Its partition is the hash modulo their number."""
    return int(murmur2(shard.encode())) & 0x7FFFFFFF
