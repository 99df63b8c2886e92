"""The log from its beginning to its real end, without a consumer group."""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError

from reefcli.errors import CommandFailed

POLL_MS = 500
SILENCE_S = 60.0  # a broker that gives nothing for so long, though there is something, is away
# Of a partition: bounds the memory, together with the number of partitions.
FETCH_BYTES = 1024 * 1024


@dataclass(slots=True)
class LogReader:
    """Topics merged by time. `ends`: None reads to the end of the log.

    The embedded broker may name too low an end; a fetch's end is right.
    """

    consumer: AIOKafkaConsumer
    partitions: tuple[TopicPartition, ...]
    begins: Mapping[TopicPartition, int]
    ends: Mapping[TopicPartition, int] | None = None
    positions: dict[TopicPartition, int] = field(default_factory=dict)
    first_at_ms: dict[str, int] = field(default_factory=dict)
    """By topic whose beginning the log no longer has: the time of what it still has."""
    _taken: defaultdict[TopicPartition, int] = field(default_factory=lambda: defaultdict(int))
    _buffers: defaultdict[TopicPartition, deque[ConsumerRecord]] = field(
        default_factory=lambda: defaultdict(deque)
    )

    async def batches(self, size: int) -> AsyncIterator[list[ConsumerRecord]]:
        """Yield up to `size` records at a time, as far as the log goes now."""
        since_ms = int(time.time() * 1000)
        batch: list[ConsumerRecord] = []
        while True:
            await self._fill(since_ms)
            more = self._merged(size - len(batch))
            batch += more
            if batch and (len(batch) == size or not more):
                yield batch
                batch = []
            if not more:
                return

    def _merged(self, size: int) -> list[ConsumerRecord]:
        """The next records in time. Ends early if a partition must be fetched."""
        batch: list[ConsumerRecord] = []
        waiting = {tp: buffer for tp, buffer in self._buffers.items() if buffer}
        while waiting and len(batch) < size:
            tp = min(waiting, key=lambda place: (waiting[place][0].timestamp, place))
            record = waiting[tp].popleft()
            self.positions[tp] = record.offset + 1
            batch.append(record)
            if not waiting[tp]:
                break
        return batch

    async def _fill(self, since_ms: int) -> None:
        deadline = time.monotonic() + SILENCE_S
        while lacking := [
            tp
            for tp in self.partitions
            if not self._buffers[tp] and not await self._ended(tp, since_ms)
        ]:
            got = await self.consumer.getmany(*lacking, timeout_ms=POLL_MS)
            for tp, records in got.items():
                self._take(tp, records)
                deadline = time.monotonic() + SILENCE_S
            if time.monotonic() > deadline:
                place = f"{lacking[0].topic} [{lacking[0].partition}]"
                raise CommandFailed(f"the broker gives nothing of {place} for {SILENCE_S:.0f} s")

    def _take(self, tp: TopicPartition, records: Iterable[ConsumerRecord]) -> None:
        for record in records:
            if self.begins[tp] and record.offset == self.begins[tp]:
                first = self.first_at_ms.get(tp.topic, 0)
                self.first_at_ms[tp.topic] = max(first, record.timestamp)
            if record.offset < self._taken[tp]:
                continue  # the embedded log has it twice while it is being merged
            self._taken[tp] = record.offset + 1
            if self.ends is None or record.offset < self.ends[tp]:
                self._buffers[tp].append(record)

    async def _ended(self, tp: TopicPartition, since_ms: int) -> bool:
        position = await self.consumer.position(tp)
        if self.ends is not None:
            return bool(position >= self.ends[tp])
        # The end that comes with a fetch is right; it must be newer than the start of this reading.
        known = self.consumer.highwater(tp)
        return (
            known is not None
            and position >= known
            and (self.consumer.last_poll_timestamp(tp) or 0) >= since_ms
        )

    def total(self) -> int:
        """Return the number of records, as far as it is known."""
        ends = self.ends or {tp: self.consumer.highwater(tp) or 0 for tp in self.partitions}
        return sum(max(ends[tp] - self.begins[tp], 0) for tp in self.partitions)

    def read(self) -> int:
        return sum(position - self.begins[tp] for tp, position in self.positions.items())


@asynccontextmanager
async def open_log(
    bootstrap: str,
    sources: Sequence[str],
    *,
    positions: Mapping[TopicPartition, int] | None = None,
    until_committed_of: str | None = None,
) -> AsyncIterator[LogReader]:
    """Open a reader at the beginning, or at `positions`.

    With `until_committed_of` it ends at that consumer group's offsets.

    Raises:
        CommandFailed: no broker answers, a topic is missing, or the log is too short.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=[address.strip() for address in bootstrap.split(",")],
        client_id="reef-replay",
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=FETCH_BYTES,
    )
    ends: dict[TopicPartition, int] | None = None
    try:
        try:
            async with asyncio.timeout(30):
                await consumer.start()
                # Loads the metadata: before this partitions_for_topic knows no topic.
                await consumer.topics()
            partitions = _partitions(consumer, sources, bootstrap)
            consumer.assign(partitions)
            begins = await consumer.beginning_offsets(partitions)
            if until_committed_of:
                offsets = await committed(bootstrap, until_committed_of, partitions)
                ends = {tp: offset or 0 for tp, offset in offsets.items()}
        except (KafkaError, OSError, TimeoutError) as error:
            raise CommandFailed(f"no broker answers at {bootstrap}: {error!r}") from None
        starts = {tp: max((positions or {}).get(tp, 0), begins[tp]) for tp in partitions}
        for tp, start in starts.items():
            consumer.seek(tp, start)
        yield LogReader(consumer, tuple(partitions), begins, ends, starts)
    finally:
        await consumer.stop()


async def committed(
    bootstrap: str, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """Return the committed offsets of a consumer group, without joining it; None: no commit."""
    places = list(partitions)
    async with AIOKafkaConsumer(
        bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False
    ) as consumer:
        consumer.assign(places)
        return {tp: await consumer.committed(tp) for tp in places}


def _partitions(
    consumer: AIOKafkaConsumer, sources: Sequence[str], bootstrap: str
) -> list[TopicPartition]:
    found = [(topic, consumer.partitions_for_topic(topic)) for topic in sources]
    if missing := [topic for topic, numbers in found if not numbers]:
        raise CommandFailed(
            f"topics are missing on {bootstrap}: {', '.join(missing)}. "
            "Is that the broker of a Reef?"
        )
    return [TopicPartition(topic, number) for topic, numbers in found for number in sorted(numbers)]
