"""The bus: one Kafka broker object a process, events out with acknowledgement, events in with retries and dead letters.

    consume:  message --decode--> handler --effect is durable--> offset committed
                         |Poison, ValidationError      -> <topic>.dead, offset committed
                         |Transient                    -> again after a delay, a bounded number of times, then dead
                         |Unavailable                  -> again after a capped delay until the outside system is back
                         |anything else                -> as Transient

Too many dead letters in a while, and nothing is dead any more: the consumer waits at that event for a person (`reefkit.dead_letter_limit`).

A handler is a plain coroutine function; the guard below is the only place that knows what an error means.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

import structlog
from aiokafka import ConsumerRecord
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import KafkaError, TopicAlreadyExistsError, for_code
from faststream import AckPolicy, BaseMiddleware, ContextRepo
from faststream.kafka import KafkaBroker, KafkaRoute
from faststream.kafka.opentelemetry import KafkaTelemetryMiddleware
from faststream.message import StreamMessage
from prometheus_client import Counter, Gauge
from pydantic import ValidationError

from reefcommon import topics
from reefcommon.errors import Conflict, Poison, Unavailable
from reefcommon.events import Event
from reefcommon.settings import SystemSettings
from reefcommon.topics import Topic, key_of
from reefkit.dead_letter_limit import Ceiling, ceiling_of, put_up
from reefkit.dead_letters import dead_letter
from reefkit.kafka_headers import with_readable_headers

log = structlog.get_logger()

MAX_ATTEMPTS = 6
FIRST_DELAY_S = 0.25
MAX_DELAY_S = 5.0
GRACEFUL_STOP_S = (
    10.0  # a handler that waits for an outside system is cancelled then; its event comes again
)
MAX_POLL_INTERVAL_MS = (
    24 * 3600 * 1000
)  # a handler may wait for an outside system as long as that is away

NEVER = (Poison, ValidationError, json.JSONDecodeError, UnicodeDecodeError)

EVENTS = Counter(
    "reef_events_total",
    "events taken from a topic, by what became of them",
    ["service", "topic", "outcome"],
)
RETRIES = Counter(
    "reef_event_retries_total",
    "handler calls that failed and were tried again",
    ["service", "topic"],
)
WAITING = Gauge(
    "reef_waiting_for_outside",
    "1 while a handler waits for an outside system to come back",
    ["service", "topic"],
)


class EventPublisher(Protocol):
    """Where events go. Returns once the broker has acknowledged (`acks=all`)."""

    async def publish(self, event: Event, topic: Topic, *, shard: str | None = None) -> None:
        """Raises Unavailable where the broker does not acknowledge."""


@dataclass(frozen=True, slots=True)
class KafkaPublisher:
    """EventPublisher on a started FastStream broker."""

    broker: KafkaBroker

    async def publish(self, event: Event, topic: Topic, *, shard: str | None = None) -> None:
        """Send one event and wait for the acknowledgement."""
        try:
            await self.broker.publish(
                event.model_dump_json(exclude_none=True).encode(),
                topic=topic.name,
                key=key_of(event, topic, shard),
                headers={"content-type": "application/json"},
            )
        except KafkaError as error:
            raise Unavailable(
                f"the broker did not acknowledge an event for {topic.name}: {error!r}"
            ) from error


@dataclass(slots=True)
class Guard:
    """Decides what an error in a handler means for its event. One a broker; FastStream calls it once a message."""

    service: str
    group: str
    broker: KafkaBroker | None = None

    def __call__(self, msg: Any, /, *, context: ContextRepo) -> "GuardedMessage":
        return GuardedMessage(self, msg, context=context)

    async def bury(
        self, record: ConsumerRecord, reason: str, attempts: int, *, counts: bool = True
    ) -> None:
        """Write one event to its dead-letter topic. `counts`: towards the ceiling. Raises TooManyDead, KafkaError."""
        assert self.broker is not None
        dead = dead_letter(record, group=self.group, reason=reason, attempts=attempts)
        if counts and (ceiling := ceiling_of(self.broker)) is not None:
            ceiling.bury(reason, dead.event_id)
        await self.broker.publish(
            dead.model_dump_json().encode(), topic=f"{record.topic}.dead", key=record.key
        )
        EVENTS.labels(self.service, record.topic, "dead").inc()
        log.error(
            "event_dead_lettered",
            topic=record.topic,
            partition=record.partition,
            offset=record.offset,
            reason=reason[:500],
        )


class GuardedMessage(BaseMiddleware[Any, Any]):
    """The guard at work on one message, or on one batch of them."""

    def __init__(self, guard: Guard, msg: Any, *, context: ContextRepo) -> None:
        super().__init__(msg, context=context)
        self.guard = guard

    async def consume_scope(
        self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]
    ) -> Any:
        """Call the handler until its effect is durable, or the event is in the dead-letter topic."""
        service = self.guard.service
        raw = msg.raw_message  # a batch is a tuple, and a list in FastStream's in-memory broker
        records: tuple[ConsumerRecord, ...] = (
            tuple(raw) if isinstance(raw, tuple | list) else (raw,)
        )
        topic = records[0].topic
        attempt = 0
        try:
            while True:
                attempt += 1
                try:
                    return await self._once(call_next, msg, records, attempt)
                except Conflict as error:
                    EVENTS.labels(service, topic, "conflict").inc(len(records))
                    log.info("event_conflict", topic=topic, reason=str(error))
                    return None
                except Unavailable as error:
                    WAITING.labels(service, topic).set(1)
                    log.warning(
                        "outside_system_unavailable",
                        topic=topic,
                        attempt=attempt,
                        reason=str(error),
                    )
                except Exception:  # a handler's mistake: raised on, the event would be read again at once and without a limit
                    log.exception("event_failed", topic=topic, attempt=attempt)
                RETRIES.labels(service, topic).inc()
                await asyncio.sleep(min(FIRST_DELAY_S * 2 ** (attempt - 1), MAX_DELAY_S))
        finally:
            WAITING.labels(service, topic).set(0)

    async def _once(
        self,
        call_next: Callable[[Any], Awaitable[Any]],
        msg: StreamMessage[Any],
        records: tuple[ConsumerRecord, ...],
        attempt: int,
    ) -> Any:
        """One call of the handler. What can never work, or failed too often, is dead. Raises Unavailable where it has to wait instead."""
        try:
            result = await call_next(msg)
        except (Conflict, Unavailable):
            raise
        except (
            Exception
        ) as error:  # whatever it is, it is raised, or is the reason of a dead letter
            if attempt < MAX_ATTEMPTS and not isinstance(error, NEVER):
                raise
            await self._bury_all(records, f"{type(error).__name__}: {error}", attempt)
            return None
        EVENTS.labels(self.guard.service, records[0].topic, "done").inc(len(records))
        if (ceiling := ceiling_of(self.guard.broker)) is not None:
            ceiling.done(len(records))
        return result

    async def _bury_all(
        self, records: tuple[ConsumerRecord, ...], reason: str, attempts: int
    ) -> None:
        try:
            for record in records:
                await self.guard.bury(record, reason, attempts)
        except KafkaError as error:
            raise Unavailable(
                f"the broker did not acknowledge a dead letter of {records[0].topic}: {error!r}"
            ) from error


class Bus(KafkaBroker):
    """A broker that joins all its groups at once: a join is mostly waiting, and one after the other they add up."""

    async def start(self) -> None:
        """Connect and consume; may be called again after a failure. Raises KafkaError where the broker does not answer."""
        await self.connect()
        joined = await asyncio.gather(
            *(self._join(subscriber) for subscriber in self.subscribers), return_exceptions=True
        )
        for failure in joined:
            if failure is not None:
                raise failure
        self.running = True

    @staticmethod
    async def _join(subscriber: Any) -> None:
        if subscriber.running:
            return
        try:
            await subscriber.start()
        except BaseException:
            await subscriber.stop()  # closes what was half open
            raise


def kafka_broker(
    settings: SystemSettings, service: str, *, group: str | None = None
) -> KafkaBroker:
    """The broker of a service, with tracing, retries and dead letters. `group` (for dead letters) defaults to the service's name."""
    guard = Guard(service=service, group=group or service)
    guard.broker = Bus(
        [address.strip() for address in settings.kafka_bootstrap.split(",")],
        client_id=f"reef-{service}",
        acks="all",
        enable_idempotence=settings.kafka_idempotence,
        max_request_size=8 * 1024 * 1024,
        allow_auto_create_topics=False,
        graceful_timeout=GRACEFUL_STOP_S,
        middlewares=(KafkaTelemetryMiddleware(), guard),
        parser=with_readable_headers,
        logger=None,
    )
    put_up(
        guard.broker,
        Ceiling(
            service,
            settings.dead_letters_limit,
            settings.dead_letters_share,
            settings.dead_letters_window_s,
        ),
    )
    return guard.broker


def route(
    handler: Callable[..., Coroutine[Any, Any, Any]], *sources: Topic, group: str, **options: Any
) -> KafkaRoute:
    """One row of a service's routing table: at least once, from the beginning of the log, offset after the effect.

    The embedded broker takes half of the session timeout for a first join, and twice for one after an unclean end.
    """
    session_timeout_ms = SystemSettings.load().kafka_session_timeout_ms
    return KafkaRoute(
        handler,
        *(topic.name for topic in sources),
        group_id=group,
        auto_offset_reset="earliest",
        ack_policy=options.pop("ack_policy", AckPolicy.NACK_ON_ERROR),
        max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=session_timeout_ms // 5,
        max_partition_fetch_bytes=options.pop("max_partition_fetch_bytes", 8 * 1024 * 1024),
        no_reply=True,
        **options,
    )


async def ensure_topics(
    bootstrap: str, wanted: tuple[Topic, ...] = topics.ALL, *, replication_factor: int = 1
) -> list[str]:
    """Create the topics of the registry, and their dead-letter topics, where they are missing. Returns the names created.

    Raises:
        Unavailable: the broker does not answer, or refuses to create one.
    """
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        await admin.start()
        existing = set(await admin.list_topics())
        new = [
            NewTopic(
                name, partitions, replication_factor, topic_configs={"retention.ms": str(retention)}
            )
            for topic in wanted
            for name, partitions, retention in (
                (topic.name, topic.partitions, topic.retention_ms),
                (topic.dead, 1, -1),
            )
            if name not in existing
        ]
        response = await admin.create_topics(new) if new else None
    except KafkaError as error:
        raise Unavailable(f"cannot create topics on {bootstrap}: {error!r}") from error
    finally:
        await admin.close()
    # The client does not raise what the broker says of each topic: it is in the answer.
    codes = {name: code for name, code, *_ in response.topic_errors} if response is not None else {}
    refused = {
        name: code for name, code in codes.items() if code not in (0, TopicAlreadyExistsError.errno)
    }
    if refused:
        reasons = ", ".join(f"{name}: {for_code(code).__name__}" for name, code in refused.items())
        raise Unavailable(f"{bootstrap} refuses to create topics: {reasons}")
    return [name for name, code in codes.items() if code == 0]


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """How far one consumer is behind the end of one partition."""

    topic: str
    partition: int
    position: int
    end: int

    @property
    def lag(self) -> int:
        """Events not yet handled."""
        return max(self.end - self.position, 0)


async def lags(broker: KafkaBroker, *, timeout_s: float = 2.0) -> list[PartitionLag]:
    """The lag of every partition that this process is assigned, by committed offset.

    Raises:
        Unavailable: the group's coordinator does not answer in time. During a rebalance the client would wait for it without end.
    """
    rows = []
    try:
        async with asyncio.timeout(timeout_s):
            for subscriber in broker.subscribers:
                consumer = subscriber.consumer  # type: ignore[attr-defined]
                assigned = (
                    [tp for tp in consumer.assignment() if consumer.highwater(tp) is not None]
                    if consumer is not None
                    else []
                )
                committed = await asyncio.gather(*(consumer.committed(tp) for tp in assigned))
                rows += [
                    PartitionLag(tp.topic, tp.partition, offset or 0, consumer.highwater(tp) or 0)
                    for tp, offset in zip(assigned, committed, strict=True)
                ]
    except (TimeoutError, KafkaError) as error:
        raise Unavailable(
            f"the broker does not say what this consumer group has committed: {error!r}"
        ) from error
    return rows
