"""The log from its beginning to its real end, without a consumer group."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from reefcli.errors import CommandFailed
from reefcommon.errors import Unavailable
from reefkit.kafka_offsets import open_consumer, real_ends

POLL_MS = 500
SILENCE_S = 60.0  # a broker that gives nothing for so long, though there is something, is away
# Of a partition: bounds the memory, together with the number of partitions.
FETCH_BYTES = 1024 * 1024
Offsets = Mapping[TopicPartition, int]
Buffers = dict[TopicPartition, deque[ConsumerRecord]]


@dataclass(slots=True)
class LogReader:
    """Topics merged by time, from `positions` to `until`, or to the end of the log."""

    bootstrap: str
    begins: Offsets
    positions: dict[TopicPartition, int]
    until: Offsets | None = None
    first_at_ms: dict[str, int] = field(default_factory=dict)
    """By topic whose beginning the log no longer has: the time of what it still has."""
    _ends: Offsets = field(default_factory=dict)

    async def batches(self, size: int) -> AsyncIterator[list[ConsumerRecord]]:
        """Yield up to `size` records at a time, as far as the log goes now.

        Raises:
            CommandFailed: the broker does not answer.
        """
        buffers: Buffers = {tp: deque() for tp in self.begins}
        batch: list[ConsumerRecord] = []
        with asking(self.bootstrap):
            topics = sorted({tp.topic for tp in self.begins})
            found = {} if self.until else await real_ends(self.bootstrap, topics)
            self._ends = self.until or {tp: n for ends in found.values() for tp, n in ends.items()}
            # A consumer that is stopped before it has done anything raises CancelledError.
            if all(self._ends[tp] <= position for tp, position in self.positions.items()):
                return
            options = {"auto_offset_reset": "earliest", "max_partition_fetch_bytes": FETCH_BYTES}
            async with open_consumer(self.bootstrap, **options) as consumer:
                consumer.assign(list(self.begins))
                for tp, position in self.positions.items():
                    consumer.seek(tp, position)
                while True:
                    await self._fill(consumer, buffers)
                    waiting = {tp: buffer for tp, buffer in buffers.items() if buffer}
                    if batch and (len(batch) == size or not waiting):
                        yield batch
                        batch = []
                    if not waiting:
                        return
                    self._merge(waiting, batch, size)

    def _merge(self, waiting: Buffers, batch: list[ConsumerRecord], size: int) -> None:
        """Add the next records in time. Ends early if a partition must be fetched."""
        while all(waiting.values()) and len(batch) < size:
            tp = min(waiting, key=lambda place: (waiting[place][0].timestamp, place))
            record = waiting[tp].popleft()
            self.positions[tp] = record.offset + 1
            batch.append(record)

    async def _fill(self, consumer: AIOKafkaConsumer, buffers: Buffers) -> None:
        deadline = time.monotonic() + SILENCE_S
        while lacking := [
            tp
            for tp, buffer in buffers.items()
            if not buffer and await consumer.position(tp) < self._ends[tp]
        ]:
            for tp, records in (await consumer.getmany(*lacking, timeout_ms=POLL_MS)).items():
                if 0 < self.begins[tp] == records[0].offset:
                    first = self.first_at_ms.get(tp.topic, 0)
                    self.first_at_ms[tp.topic] = max(first, records[0].timestamp)
                wanted = range(self.positions[tp], self._ends[tp])
                # By offset: the embedded log has records twice while they are being merged.
                unique = {record.offset: record for record in records if record.offset in wanted}
                buffers[tp].extend(unique.values())
                deadline = time.monotonic() + SILENCE_S
            if time.monotonic() > deadline:
                place = f"{lacking[0].topic} [{lacking[0].partition}]"
                raise CommandFailed(f"the broker gives nothing of {place} for {SILENCE_S:.0f} s")

    def total(self) -> int:
        """Return the number of records up to the end of the last `batches`."""
        return sum(max(end - self.begins[tp], 0) for tp, end in self._ends.items())

    def read(self) -> int:
        return sum(position - self.begins[tp] for tp, position in self.positions.items())


async def open_log(
    bootstrap: str, sources: Sequence[str], positions: Offsets | None = None, *, group: str = ""
) -> LogReader:
    """Return a reader at the beginning, or at `positions`.

    With `group` it ends at the committed offsets of that consumer group.

    Raises:
        CommandFailed: no broker answers, or a topic is missing.
    """
    until: dict[TopicPartition, int] | None = None
    with asking(bootstrap):
        async with asyncio.timeout(30), open_consumer(bootstrap) as consumer:
            # Loads the metadata: before this partitions_for_topic knows no topic.
            await consumer.topics()
            numbers = {topic: consumer.partitions_for_topic(topic) for topic in sources}
            if missing := [topic for topic, found in numbers.items() if not found]:
                fault = f"topics are missing on {bootstrap}: {', '.join(missing)}"
                raise CommandFailed(f"{fault}. Is that the broker of a Reef?")
            places = [TopicPartition(t, n) for t, found in numbers.items() for n in sorted(found)]
            begins = await consumer.beginning_offsets(places)
        if group:
            offsets = await committed(bootstrap, group, places)
            until = {tp: offset or 0 for tp, offset in offsets.items()}
    starts = {tp: max((positions or {}).get(tp, 0), begins[tp]) for tp in places}
    return LogReader(bootstrap, begins, starts, until)


@contextmanager
def asking(bootstrap: str) -> Iterator[None]:
    """Raise errors of a broker as CommandFailed."""
    try:
        yield
    except (KafkaError, OSError, Unavailable) as error:
        raise CommandFailed(f"no broker answers at {bootstrap}: {error!r}") from None


async def committed(
    bootstrap: str, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """Return the committed offsets of a consumer group, without joining it; None: no commit."""
    async with open_consumer(bootstrap, group_id=group) as consumer:
        consumer.assign(places := list(partitions))
        return {tp: await consumer.committed(tp) for tp in places}
