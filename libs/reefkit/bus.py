"""The bus: a broker object for each process. Handlers are guarded by `reefkit.guard`."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from aiokafka import errors
from faststream import AckPolicy
from faststream.kafka import KafkaBroker, KafkaRoute
from faststream.kafka.opentelemetry import KafkaTelemetryMiddleware
from opentelemetry import context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from reefcommon.errors import Poison, Unavailable
from reefcommon.events import Event
from reefcommon.settings import SystemSettings
from reefcommon.topics import Topic
from reefkit.bodies import FilesystemBodies, claim_check
from reefkit.dead_letter_limit import DeadLetterLimit
from reefkit.guard import Guard
from reefkit.kafka_headers import with_readable_headers
from reefkit.kafka_pace import pace
from reefkit.kafka_topics import LagProbe, PartitionLag

# A handler that waits for an outside system is cancelled then; its event comes again.
GRACEFUL_STOP_S = 10.0
# How long a fetch waits for an event. Kafka answers at the first one; `reefkit.kafka_pace` has what
# the embedded broker does.
UNHURRIED_MS, SOON_MS, AT_ONCE_MS = 1000, 500, 250

# The message itself is at fault: no broker will ever take it. Every other error of a publish is
# about the broker, the network or their set-up, and is waited for.
NEVER_TAKEN = (
    errors.InvalidTimestampError,
    errors.MessageSizeTooLargeError,
    errors.RecordListTooLargeError,
    errors.RecordTooLargeError,
    errors.UnsupportedForMessageFormatError,
)


class EventPublisher(Protocol):
    """Sends events. Returns when the broker has acknowledged (`acks=all`)."""

    async def publish(self, event: Event, topic: Topic) -> None:
        """Send an event of any size.

        Raises:
            Unavailable: the broker does not acknowledge.
            Poison: no broker will ever take this event.
        """


class Bus(KafkaBroker):
    """A broker that joins all its groups at once, so that their waits do not add up."""

    def __init__(
        self, *args: Any, guard: Guard, answer_s: float, paced: bool, **options: Any
    ) -> None:
        super().__init__(*args, **options)
        self.guard, self.paced = guard, paced
        self.lag_probe = LagProbe(answer_s)

    async def start(self) -> None:
        """Connect and consume. May be repeated after a failure. Raises KafkaError."""
        await self.connect()
        joined = await asyncio.gather(
            *(self._join(subscriber) for subscriber in self.subscribers), return_exceptions=True
        )
        for failure in joined:
            if failure is not None:
                raise failure
        self.running = True

    async def _join(self, subscriber: Any) -> None:
        if subscriber.running:
            return
        try:
            await subscriber.start()
        except BaseException:
            await subscriber.stop()  # closes what was half open
            raise
        if self.paced:
            pace(subscriber.consumer)


@dataclass(frozen=True, slots=True)
class KafkaPublisher:
    """EventPublisher on a started bus."""

    broker: Bus

    async def publish(self, event: Event, topic: Topic) -> None:
        encoded = event.model_dump_json(exclude_none=True).encode()
        value, headers = await claim_check(encoded, self.broker.guard.bodies)
        try:
            with _in_trace_of(event):
                await self.broker.publish(
                    value,
                    topic=topic.name,
                    # the gateway alone writes the topics that are keyed by shard
                    key=event.scenario.encode(),
                    headers={"content-type": "application/json", **headers},
                )
        except NEVER_TAKEN as error:
            raise Poison(f"{topic.name} refuses the event {event.event_id}: {error!r}") from error
        except errors.KafkaError as error:
            what = f"an event for {topic.name}"
            raise Unavailable(f"the broker did not acknowledge {what}: {error!r}") from error


@contextmanager
def _in_trace_of(event: Event) -> Iterator[None]:
    # The span of a batch is of many exchanges, and is the parent of none.
    carrier = {"traceparent": event.traceparent} if event.traceparent else {}
    token = context.attach(TraceContextTextMapPropagator().extract(carrier, context.get_current()))
    try:
        yield
    finally:
        context.detach(token)


def kafka_broker(settings: SystemSettings, service: str) -> Bus:
    """Build the broker of a service."""
    guard = Guard(
        service,
        FilesystemBodies(settings.state_dir / "bodies"),
        DeadLetterLimit(
            service,
            settings.dead_letters_limit,
            settings.dead_letters_share,
            settings.dead_letters_window_s,
        ),
    )
    bus = Bus(
        [address.strip() for address in settings.kafka_bootstrap.split(",")],
        guard=guard,
        answer_s=settings.kafka_answer_s,
        paced=not settings.kafka_idempotence,  # the embedded broker
        client_id=f"reef-{service}",
        acks="all",
        enable_idempotence=settings.kafka_idempotence,
        allow_auto_create_topics=False,
        graceful_timeout=GRACEFUL_STOP_S,
        middlewares=(KafkaTelemetryMiddleware(), guard),
        parser=with_readable_headers,
        logger=None,
    )
    guard.sender = bus
    return bus


def route(
    handler: Callable[..., Coroutine[Any, Any, Any]], *sources: Topic, group: str, **options: Any
) -> KafkaRoute:
    """Make a row of a routing table: at least once, from the beginning, offset after the effect."""
    # The embedded broker takes half of the session timeout for a first join, and twice for a join
    # after an unclean end.
    session_timeout_ms = SystemSettings.load().kafka_session_timeout_ms
    return KafkaRoute(
        handler,
        *(topic.name for topic in sources),
        group_id=group,
        auto_offset_reset="earliest",
        ack_policy=options.pop("ack_policy", AckPolicy.NACK_ON_ERROR),
        # a handler may wait for an outside system as long as that is away
        max_poll_interval_ms=24 * 3600 * 1000,
        session_timeout_ms=session_timeout_ms,
        heartbeat_interval_ms=session_timeout_ms // 3,
        fetch_max_wait_ms=options.pop("fetch_max_wait_ms", UNHURRIED_MS),
        consumer_timeout_ms=1000,  # how often an idle consumer looks at itself
        max_partition_fetch_bytes=options.pop("max_partition_fetch_bytes", 8 * 1024 * 1024),
        no_reply=True,
        **options,
    )


fast_route = partial(route, fetch_max_wait_ms=AT_ONCE_MS)
"""A row for a consumer that somebody waits for."""


async def lags(bus: Bus, *, wait_s: float = 2.0, max_age_s: float = 0.0) -> list[PartitionLag]:
    """Return the lag of each assigned partition, by committed offset.

    After `wait_s` the latest answer counts, up to an age of `max_age_s`. Raises Unavailable.
    """
    consumers = [
        subscriber.consumer  # type: ignore[attr-defined]
        for subscriber in bus.subscribers
        if subscriber.consumer is not None  # type: ignore[attr-defined]
    ]
    return await bus.lag_probe.rows(consumers, wait_s=wait_s, max_age_s=max_age_s)
