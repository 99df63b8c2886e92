"""Events to the broker, with its acknowledgement.

It uses the producer: a publish through FastStream costs more than the rest of an exchange.
"""

import asyncio
from collections.abc import Sequence

import structlog
from aiokafka import AIOKafkaProducer
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)

from reefcommon import topics
from reefcommon.errors import Unavailable
from reefkit.bodies import CLAIM_OVER_BYTES, FilesystemBodies, claim_check
from services.gateway.domain.log_event import LogEvent
from services.gateway.log.group_commit import GroupCommit, Headers
from services.gateway.ports import NotDurable

log = structlog.get_logger()

MAX_REQUEST_BYTES = 8 * 1024 * 1024
MAX_BATCH_BYTES = 512 * 1024
REQUEST_TIMEOUT_MS = 5_000
CONNECT_TIMEOUT_S = 5.0
METADATA_TIMEOUT_S = 2.0
CONNECTS_BEFORE_RESTART = 5
LISTEN_AFTER_S = 0.25
STOP_TIMEOUT_S = 2 * REQUEST_TIMEOUT_MS / 1000
_TOO_LARGE = (MessageSizeTooLargeError, RecordListTooLargeError)
_JSON = ("content-type", b"application/json")


class EventRefused(NotDurable):
    """The broker will never take this event."""


class KafkaRecordLog:
    """Sends new and spooled events with `acks=all` on one producer.

    `away`: the reason not to send, set by `let_go` and removed by `connect`.
    """

    def __init__(
        self, bootstrap: str, bodies: FilesystemBodies, *, idempotence: bool, ack_timeout_s: float
    ) -> None:
        self._bootstrap = bootstrap
        self._bodies = bodies
        self._idempotence = idempotence
        self._ack_timeout_s = ack_timeout_s
        self._producer: AIOKafkaProducer | None = None
        self._commits: GroupCommit | None = None
        self._waiting: dict[asyncio.Future[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._failed_connects = 0
        self.away: str | None = f"the broker at {bootstrap} was not reached yet"

    @property
    def waiting(self) -> int:
        """Events that are not acknowledged yet."""
        return len(self._waiting)

    async def connect(self) -> None:
        """Return when the broker answers. Raises NotDurable."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                if self._producer is None:
                    await self._start()
                else:
                    await self._producer.client.fetch_all_metadata()
        except (KafkaError, TimeoutError, OSError) as error:
            self._failed_connects += 1
            if self._failed_connects % CONNECTS_BEFORE_RESTART == 0:
                # The known addresses may be out of date: the next one asks the bootstrap hosts.
                await self.stop()
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
        self._commits = GroupCommit(producer)

    async def stop(self) -> None:
        """Send the queued events, for as long as requests may take, then close."""
        producer, self._producer = self._producer, None
        commits, self._commits = self._commits, None
        if producer is not None and commits is not None:
            try:
                async with asyncio.timeout(STOP_TIMEOUT_S):
                    await commits.flush()
                    await producer.stop()
            except TimeoutError:
                await _abandon(producer)
        if self._timer is not None and not self._waiting:
            self._timer.cancel()
            self._timer = None

    async def append(self, event: LogEvent) -> None:
        """Send an event and wait for all replicas.

        Raises:
            EventRefused: the broker will never take it.
            NotDurable: the log may hold it.
        """
        try:
            if len(event.data) <= CLAIM_OVER_BYTES:
                await self._send(event, headers_of(event))
            else:
                await self._send(*await self._checked(event))
        except EventRefused:
            # A broker may have a smaller limit than ours.
            await self._send(*await self._checked(event, over=0))

    async def append_all(self, events: Sequence[LogEvent]) -> None:
        """Send events in order and wait for all. Raises as `append`."""
        # Claims are checked before the first event is sent: a large one would be overtaken.
        checked = [await self._checked(event) for event in events]
        results = await asyncio.gather(
            *(self._send(event, headers) for event, headers in checked), return_exceptions=True
        )
        for event, result in zip(events, results, strict=True):
            if isinstance(result, EventRefused):
                await self._send(*await self._checked(event, over=0))
            elif result is not None:
                raise result

    async def _checked(
        self, event: LogEvent, *, over: int = CLAIM_OVER_BYTES
    ) -> tuple[LogEvent, Headers]:
        headers = headers_of(event)
        if len(event.data) <= over:
            return event, headers
        try:
            data, claim = await claim_check(event.data, self._bodies, over=over)
        except Unavailable as error:
            raise NotDurable(str(error)) from error
        return event._replace(data=data), [*headers, *((k, v.encode()) for k, v in claim.items())]

    async def _send(self, event: LogEvent, headers: Headers) -> None:
        if self._commits is None or self.away is not None:
            raise NotDurable(self.away or "the producer is stopped")
        loop = asyncio.get_running_loop()
        done = self._commits.put(event, headers)
        self._waiting[done] = loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self._ack_timeout_s, self._expire)
        try:
            await done
        except _TOO_LARGE as error:
            raise EventRefused(
                f"an event of {len(event.data)} bytes is too large for the broker at"
                f" {self._bootstrap}: {error!r}"
            ) from error
        except (KafkaError, TimeoutError, OSError) as error:
            raise NotDurable(
                self.away
                or f"the broker at {self._bootstrap} did not acknowledge an event: {error!r}"
            ) from error
        finally:
            del self._waiting[done]

    def _expire(self) -> None:
        # One timer for all events: they wait in the order in which they came.
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
        """Note that the broker is away, and end all waits for it."""
        self.away = reason
        for done in self._waiting:
            if not done.done():
                done.set_exception(TimeoutError(reason))

    async def gone(self) -> str | None:
        """The reason not to wait longer: an event waits unusually long and no port listens."""
        oldest = next(iter(self._waiting.values()), None)
        if (
            oldest is None
            or asyncio.get_running_loop().time() - oldest < LISTEN_AFTER_S
            or await anyone_listens(self._bootstrap)
        ):
            return None
        return f"nothing listens at {self._bootstrap}"

    async def missing_topics(self) -> str | None:
        """A sentence that names the missing topics. Raises NotDurable if the broker is away."""
        if self._producer is None:
            raise NotDurable(self.away or "the producer is stopped")
        try:
            async with asyncio.timeout(METADATA_TIMEOUT_S):
                metadata = await self._producer.client.fetch_all_metadata()
        except (KafkaError, TimeoutError) as error:
            raise NotDurable(
                f"the broker at {self._bootstrap} does not answer: {error!r}"
            ) from error
        missing = [topic.name for topic in topics.ALL if topic.name not in metadata.topics()]
        if not missing:
            return None
        return (
            f"topics are missing on {self._bootstrap}: {', '.join(missing)};"
            " `reef serve` creates them at its start"
        )


async def _abandon(producer: AIOKafkaProducer) -> None:
    # `stop` of an idempotent producer waits until its batches are acknowledged, also for a broker
    # that never comes back. Their events are in the spool. No public call ends that wait.
    log.warning("producer_abandoned")
    sender, batches = producer._sender, producer._message_accumulator  # noqa: SLF001
    await sender.close()
    batches.fail_all(KafkaConnectionError("the producer was abandoned"))
    await producer.stop()


def headers_of(event: LogEvent) -> Headers:
    """The headers that FastStream would send: its tracing links a batch by `correlation_id`."""
    headers = [_JSON, ("correlation_id", event.event_id.encode())]
    if event.traceparent:
        headers.append(("traceparent", event.traceparent.encode()))
    return headers


async def anyone_listens(bootstrap: str) -> bool:
    """True if an address takes a connection, or does not refuse it at once."""
    for address in bootstrap.split(","):
        host, _, port = address.strip().rpartition(":")
        try:
            async with asyncio.timeout(LISTEN_AFTER_S):
                _, writer = await asyncio.open_connection(host, int(port))
        except TimeoutError:
            return True
        except OSError:
            continue
        writer.close()
        return True
    return False
