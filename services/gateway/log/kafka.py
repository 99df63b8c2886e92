"""The log: events out with acknowledgement. (Release events in: tail.py.)

The producer is used directly: a publish through FastStream costs more than the rest of the hot path.
"""

import asyncio
from collections.abc import Sequence

import structlog
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError, MessageSizeTooLargeError, RecordListTooLargeError
from aiokafka.partitioner import DefaultPartitioner
from aiokafka.producer.message_accumulator import BatchBuilder

from reefcommon import topics
from services.gateway.domain.segment import Spooled
from services.gateway.log.outbox import Outbox
from services.gateway.ports import NotDurable

log = structlog.get_logger()

MAX_REQUEST_BYTES = 8 * 1024 * 1024
MAX_BATCH_BYTES = 512 * 1024
REQUEST_TIMEOUT_MS = 5_000  # a request without an answer is given up then, and with it what waits in the producer's queue
CONNECT_TIMEOUT_S = 5.0
LOOK_TIMEOUT_S = 2.0
CONNECTS_BEFORE_ANEW = 5
LOOK_AFTER_S = 0.25
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
_HEADERS: list[tuple[str, bytes]] = [("content-type", b"application/json")]


class EventRefused(NotDurable):
    """The broker will never take this event."""


class KafkaRecordLog:
    """The broker, `acks=all`. One producer for events as they come and for those that waited: a partition's order is that of its queue.

    `away`: why it is not asked now; set by `let_go`, taken back by `connect`.
    """

    def __init__(
        self, bootstrap: str, *, idempotence: bool, linger_ms: int, ack_timeout_s: float
    ) -> None:
        self._bootstrap = bootstrap
        self._idempotence = idempotence
        self._linger_ms = linger_ms
        self._ack_timeout_s = ack_timeout_s
        self._producer: AIOKafkaProducer | None = None
        self._partitioner = DefaultPartitioner()
        self._outbox: Outbox | None = None
        self._waiting: dict[asyncio.Future[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._failed_connects = 0
        self.away: str | None = f"the broker at {bootstrap} was not reached yet"

    @property
    def waiting(self) -> int:
        """Events that are not acknowledged yet."""
        return len(self._waiting)

    async def connect(self) -> None:
        """Returns once the broker answers. Raises NotDurable."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if self._producer is None:
                    await self._start()
                else:
                    await self._producer.client.fetch_all_metadata()
        except (KafkaError, TimeoutError, OSError) as error:
            self._failed_connects += 1
            if self._failed_connects % CONNECTS_BEFORE_ANEW == 0:
                await (
                    self.stop()
                )  # its addresses may be out of date: the next one asks the bootstrap hosts again
            raise NotDurable(
                f"the broker at {self._bootstrap} does not answer: {error!r}"
            ) from error
        self._failed_connects = 0
        self.away = None

    async def _start(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            client_id="reef-gateway",
            acks="all",
            enable_idempotence=self._idempotence,
            linger_ms=self._linger_ms,
            max_batch_size=MAX_BATCH_BYTES,
            max_request_size=MAX_REQUEST_BYTES,
            request_timeout_ms=REQUEST_TIMEOUT_MS,
        )
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        self._producer = producer
        self._outbox = Outbox(
            producer,
            direct=not self._idempotence,
            linger_s=self._linger_ms / 1000,
            timeout_ms=REQUEST_TIMEOUT_MS,
            batch_bytes=MAX_BATCH_BYTES,
            request_bytes=MAX_REQUEST_BYTES - MAX_BATCH_BYTES,
        )

    async def stop(self) -> None:
        """Send what is left, for as long as a request may take, then close."""
        producer, self._producer = self._producer, None
        outbox, self._outbox = self._outbox, None
        if outbox is not None:
            await outbox.flush()
        if producer is not None:
            await producer.stop()
        if self._timer is not None and not self._waiting:
            self._timer.cancel()
            self._timer = None

    async def append(self, topic: str, event: bytes, shard: str, traceparent: str = "") -> None:
        """Send one event and wait for all replicas."""
        if self._outbox is None or self.away is not None:
            raise NotDurable(self.away or "the producer is stopped")
        if len(event) > MAX_REQUEST_BYTES:
            raise EventRefused(
                f"an event of {len(event)} bytes is too large for the broker at {self._bootstrap}"
            )
        loop = asyncio.get_running_loop()
        done = self._outbox.put(topic, shard.encode(), event, headers_of(traceparent))
        self._waiting[done] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._ack_timeout_s, self._expire)
        try:
            await done
        except _TOO_LARGE as error:
            raise EventRefused(
                f"an event of {len(event)} bytes is too large for the broker at {self._bootstrap}: {error!r}"
            ) from error
        except (KafkaError, TimeoutError, OSError) as error:
            raise NotDurable(
                self.away
                or f"the broker at {self._bootstrap} did not acknowledge an event: {error!r}"
            ) from error
        finally:
            del self._waiting[done]

    def _expire(self) -> None:
        """One timer for all: they wait in the order in which they came."""
        self._timer = None
        loop = asyncio.get_running_loop()
        for done, since in self._waiting.items():
            left_s = since + self._ack_timeout_s - loop.time()
            if left_s > 0:
                self._timer = loop.call_later(left_s, self._expire)
                return
            if not done.done():
                done.set_exception(
                    TimeoutError(f"no acknowledgement within {self._ack_timeout_s:g} s")
                )

    def let_go(self, reason: str) -> None:
        """The broker is away: whatever waits for it stops waiting."""
        self.away = reason
        for done in self._waiting:
            if not done.done():
                done.set_exception(TimeoutError(reason))

    async def gone(self) -> str | None:
        """Whether an event has been waiting unusually long and nothing listens at the broker's addresses: why wait any longer."""
        oldest = next(iter(self._waiting.values()), None)
        if (
            oldest is None
            or asyncio.get_running_loop().time() - oldest < LOOK_AFTER_S
            or await anyone_listens(self._bootstrap)
        ):
            return None
        return f"nothing listens at {self._bootstrap}"

    async def send(self, records: Sequence[Spooled]) -> int:
        """Send events in order, one batch a partition, and wait for all replicas. Returns how many of them: a batch may be full before.

        Raises:
            EventRefused: one of them will never be taken; alone in `records`, it is that one.
            NotDurable: any of them may be in the log, or not.
        """
        if self._producer is None:
            raise NotDurable("the producer is stopped")
        try:
            async with asyncio.timeout(self._ack_timeout_s):
                batches, count = await self._batches(self._producer, records)
                sent = [
                    await self._producer.send_batch(batch, at.topic, partition=at.partition)
                    for at, batch in batches.items()
                ]
                await asyncio.gather(*sent)
        except _TOO_LARGE as error:
            raise EventRefused(repr(error)) from error
        except (KafkaError, TimeoutError) as error:
            raise NotDurable(
                f"the broker at {self._bootstrap} did not acknowledge events that wait: {error!r}"
            ) from error
        return count

    async def _batches(
        self, producer: AIOKafkaProducer, records: Sequence[Spooled]
    ) -> tuple[dict[TopicPartition, BatchBuilder], int]:
        batches: dict[TopicPartition, BatchBuilder] = {}
        for count, record in enumerate(records):
            key = record.shard.encode()
            partitions = sorted(await producer.partitions_for(record.topic))
            at = TopicPartition(record.topic, self._partitioner(key, partitions, partitions))
            batch = batches.get(at)
            if batch is None:
                batch = batches[at] = producer.create_batch()
            headers = headers_of(record.traceparent)
            if (
                batch.append(
                    timestamp=int(record.at * 1000), key=key, value=record.event, headers=headers
                )
                is None
            ):
                return batches, count
        for batch in batches.values():
            batch.close()
        return batches, len(records)

    async def missing_topics(self) -> str | None:
        """Which topics the broker has not, as a sentence. Raises NotDurable where it does not answer."""
        if self._producer is None:
            raise NotDurable(self.away or "the producer is stopped")
        try:
            async with asyncio.timeout(LOOK_TIMEOUT_S):
                found = await self._producer.client.fetch_all_metadata()
        except (KafkaError, TimeoutError) as error:
            raise NotDurable(
                f"the broker at {self._bootstrap} does not answer: {error!r}"
            ) from error
        missing = [topic.name for topic in topics.ALL if topic.name not in found.topics()]
        if missing:
            return f"topics are missing on {self._bootstrap}: {', '.join(missing)}; `reef serve` creates them at its start"
        return None


def headers_of(traceparent: str) -> list[tuple[str, bytes]]:
    """The headers of every event."""
    return [*_HEADERS, ("traceparent", traceparent.encode())] if traceparent else _HEADERS


async def anyone_listens(bootstrap: str) -> bool:
    """Whether one of the addresses takes a connection, or at least does not refuse it at once."""
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            async with asyncio.timeout(LOOK_AFTER_S):
                _, writer = await asyncio.open_connection(host, int(port))
        except TimeoutError:
            return True
        except OSError:
            continue
        writer.close()
        return True
    return False
