"""The log: events out with acknowledgement, release events in.

The producer is used directly: a publish through FastStream costs more than the rest of the hot path.
"""

import asyncio
from collections.abc import Awaitable, Callable

import structlog
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaError
from pydantic import TypeAdapter, ValidationError

from reefcommon import topics
from reefcommon.events import Event, Learning, Publication, ReleasePublished, ReleaseRejected
from services.gateway.handlers import Command, News, NotDurable, command_of

log = structlog.get_logger()

_FOLLOWED = (topics.RELEASES, topics.TRAINING)
_HEARD: TypeAdapter[Event] = TypeAdapter(Publication | Learning)
OnEvent = Callable[[Event], Awaitable[None]]
MAX_REQUEST_BYTES = 8 * 1024 * 1024


class KafkaRecordLog:
    """RecordLog on Kafka, `acks=all`."""

    def __init__(self, bootstrap: str, *, idempotence: bool, linger_ms: int, ack_timeout_s: float) -> None:
        self._bootstrap = bootstrap
        self._idempotence = idempotence
        self._linger_ms = linger_ms
        self._ack_timeout_s = ack_timeout_s
        self._producer: AIOKafkaProducer | None = None
        self._unacknowledged: str | None = None
        self.waiting = 0

    async def start(self) -> None:
        """Connect. Raises KafkaError."""
        producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap,
            client_id="reef-gateway",
            acks="all",
            enable_idempotence=self._idempotence,
            linger_ms=self._linger_ms,
            max_request_size=MAX_REQUEST_BYTES,
            request_timeout_ms=max(int(self._ack_timeout_s * 1000), 1000),
        )
        try:
            await producer.start()
        except KafkaError:
            await producer.stop()
            raise
        self._producer = producer

    async def stop(self) -> None:
        """Send what is left, then close."""
        if self._producer is not None:
            await self._producer.stop()

    async def append(self, topic: str, event: bytes, shard: str, traceparent: str = "") -> None:
        """Send one event and wait for all replicas."""
        assert self._producer is not None
        headers = [("content-type", b"application/json")]
        if traceparent:
            headers.append(("traceparent", traceparent.encode()))
        self.waiting += 1
        try:
            async with asyncio.timeout(self._ack_timeout_s):
                await (await self._producer.send(topic, event, key=shard.encode(), headers=headers))
        except (KafkaError, TimeoutError) as error:
            self._unacknowledged = f"the broker at {self._bootstrap} did not acknowledge an event: {error!r}"
            raise NotDurable(self._unacknowledged) from error
        finally:
            self.waiting -= 1
        self._unacknowledged = None

    async def failure(self) -> str | None:
        """None where the broker answers a request for metadata, and the last event was acknowledged."""
        assert self._producer is not None
        try:
            async with asyncio.timeout(2):
                found = await self._producer.client.fetch_all_metadata()
        except (KafkaError, TimeoutError) as error:
            return f"the broker at {self._bootstrap} does not answer: {error!r}"
        missing = [topic.name for topic in topics.ALL if topic.name not in found.topics()]
        if missing:
            return f"topics are missing on {self._bootstrap}: {', '.join(missing)}; `reef serve` creates them at its start"
        return self._unacknowledged


class ReleaseTail:
    """Reads the releases, and the recipes' steps, from the end, without a group: every gateway hears everything.

    It also answers those who wait for what comes of a command.
    """

    def __init__(self, bootstrap: str, log_: KafkaRecordLog) -> None:
        self._bootstrap = bootstrap
        self._log = log_
        self._waiting: dict[str, asyncio.Future[News]] = {}
        self.listening = asyncio.Event()

    async def submit(self, command: Command, *, timeout_s: float) -> News:
        """Send a command and wait for the release event that names it."""
        future: asyncio.Future[News] = asyncio.get_running_loop().create_future()
        self._waiting[command.event_id] = future
        try:
            async with asyncio.timeout(timeout_s):
                await self.listening.wait()
                event = command.model_dump_json(exclude_none=True).encode()
                await self._log.append(topics.COMMANDS.name, event, command.scenario, command.traceparent)
                return await future
        finally:
            del self._waiting[command.event_id]

    async def run(self, snapshot: Callable[[], Awaitable[None]], on_event: OnEvent, *, every_s: float) -> None:
        """For ever: stand at the end of the topic, take a snapshot, follow; start over after an error, and look again every `every_s`."""
        while True:
            try:
                await self._follow(snapshot, on_event, every_s)
            except (KafkaError, OSError) as error:
                self.listening.clear()
                log.warning("release_tail_broken", reason=repr(error)[:300])
                await asyncio.sleep(1)

    async def _follow(self, snapshot: Callable[[], Awaitable[None]], on_event: OnEvent, every_s: float) -> None:
        consumer = AIOKafkaConsumer(bootstrap_servers=self._bootstrap, group_id=None, enable_auto_commit=False, auto_offset_reset="latest")
        try:
            await consumer.start()
            assigned = [TopicPartition(topic.name, n) for topic in _FOLLOWED for n in range(topic.partitions)]
            consumer.assign(assigned)
            await consumer.seek_to_end(*assigned)
            for partition in assigned:
                await consumer.position(partition)
            await snapshot()
            self.listening.set()
            seen = asyncio.get_running_loop().time()
            while True:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    for record in records:
                        await self._hear(record.value, on_event)
                if asyncio.get_running_loop().time() - seen > every_s:
                    await snapshot()
                    seen = asyncio.get_running_loop().time()
        finally:
            await consumer.stop()

    async def _hear(self, value: bytes | None, on_event: OnEvent) -> None:
        try:
            event = _HEARD.validate_json(value or b"")
        except ValidationError as error:
            log.warning("event_unreadable", reason=str(error)[:300])
            return
        await on_event(event)
        future = self._waiting.get(command_of(event) or "")
        if future is not None and not future.done() and isinstance(event, (ReleasePublished, ReleaseRejected)):
            future.set_result(event)
