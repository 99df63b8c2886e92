"""The fate of an event whose handler raises an error."""

#     message --claim resolved--> decode --> handler --effect is durable--> offset committed
#                |Poison, ValidationError  -> <topic>.dead, offset committed
#                |Transient                -> again after a delay, MAX_ATTEMPTS times, then dead
#                |Unavailable              -> again after a capped delay until the system is back
#                |Conflict                 -> dropped and counted, offset committed
#                |anything else            -> as Transient
#
# If too many events are dead within a window, the consumer stops taking events and waits at that
# event for a person (`reefkit.dead_letter_limit`). A wait is shown with its cause (`Waits`).

import asyncio
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import structlog
from aiokafka import ConsumerRecord
from aiokafka.errors import KafkaError
from faststream import BaseMiddleware, ContextRepo
from faststream.kafka import KafkaBroker
from faststream.message import StreamMessage
from prometheus_client import Counter, Gauge
from pydantic import ValidationError

from reefcommon.errors import Conflict, Poison, Unavailable
from reefkit.bodies import CLAIM_HEADER, BodyMissing, FilesystemBodies, claim_check, claim_in
from reefkit.dead_letter_limit import DeadLetterLimit
from reefkit.dead_letters import dead_letter
from reefkit.retry import RetryPolicy

log = structlog.get_logger()

MAX_ATTEMPTS = 6
RETRY = RetryPolicy()
BODY_WAIT_S = 60.0
SHOWN_AFTER_S = 5.0
PIECE_BYTES = 64 * 1024 * 1024

Handler = Callable[[Any], Awaitable[Any]]
Message = StreamMessage[Any]
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


@dataclass(slots=True)
class Waits:
    """Retried work by name, with its cause and its beginning."""

    _open: dict[str, tuple[str, float]] = field(default_factory=dict)

    def began(self, name: str, reason: str) -> None:
        _, since = self._open.get(name, ("", time.time()))
        self._open[name] = (reason, since)

    def ended(self, name: str) -> None:
        self._open.pop(name, None)

    def shown(self) -> dict[str, str]:
        """Return the waits of more than SHOWN_AFTER_S seconds."""
        now = time.time()
        return {
            f"waiting {name}": f"for {now - since:.0f} s, since "
            f"{datetime.fromtimestamp(since, UTC):%Y-%m-%dT%H:%M:%SZ}: {reason[:500]}"
            for name, (reason, since) in self._open.items()
            if now - since >= SHOWN_AFTER_S
        }


@dataclass(slots=True, eq=False)
class Guard:
    """The retries, dead letters and waits of a broker. FastStream calls it for each message."""

    service: str
    bodies: FilesystemBodies
    limit: DeadLetterLimit
    sender: KafkaBroker | None = None
    waits: Waits = field(default_factory=Waits)

    def __call__(self, msg: Any, /, *, context: ContextRepo) -> "GuardedMessage":
        return GuardedMessage(self, msg, context=context)

    async def bury(
        self, record: ConsumerRecord, reason: str, attempts: int, *, counts: bool = True
    ) -> None:
        """Write an event to its dead-letter topic. `counts`: towards the limit.

        Raises:
            Unavailable: the broker does not acknowledge.
            TooManyDead: the limit is reached.
        """
        assert self.sender is not None
        dead = dead_letter(record, group=self.service, reason=reason, attempts=attempts)
        if counts:
            self.limit.bury(reason, dead.event_id)
        value, headers = await claim_check(dead.model_dump_json().encode(), self.bodies)
        topic = f"{record.topic}.dead"
        try:
            await self.sender.publish(value, topic=topic, key=record.key, headers=headers)
        # A refusal waits like an absence: there is no second place for a dead letter.
        except KafkaError as error:
            raise Unavailable(f"{topic} did not acknowledge a dead letter: {error!r}") from error
        EVENTS.labels(self.service, record.topic, "dead").inc()
        at = {"topic": record.topic, "partition": record.partition, "offset": record.offset}
        log.error("event_dead_lettered", reason=reason[:500], **at)


class GuardedMessage(BaseMiddleware[Any, Any]):
    """The guard at work on a message, or on a batch."""

    def __init__(self, guard: Guard, msg: Any, *, context: ContextRepo) -> None:
        super().__init__(msg, context=context)
        self.guard = guard
        self._began = time.monotonic()

    async def consume_scope(self, call_next: Handler, msg: Message) -> Any:
        service, waits = self.guard.service, self.guard.waits
        raw = msg.raw_message  # a batch is a tuple, and a list in FastStream's in-memory broker
        records = tuple(raw) if isinstance(raw, tuple | list) else (raw,)
        pieces, topic, attempt = deque(_pieces(records)), records[0].topic, 0
        result = None
        try:
            while True:
                attempt += 1
                try:
                    while pieces:
                        result = await self._handle(call_next, msg, pieces[0], attempt)
                        pieces.popleft()
                    return result
                except Conflict as error:
                    EVENTS.labels(service, topic, "conflict").inc(len(records))
                    log.info("event_conflict", topic=topic, reason=str(error))
                    return None
                except Unavailable as error:
                    WAITING.labels(service, topic).set(1)
                    waits.began(topic, str(error))
                    at = {"topic": topic, "attempt": attempt}
                    log.warning("outside_system_unavailable", reason=str(error), **at)
                # A handler's mistake. Raised on, the event would be read again at once, for ever.
                except Exception as error:
                    waits.began(topic, f"{type(error).__name__}: {error}")
                    log.exception("event_failed", topic=topic, attempt=attempt)
                RETRIES.labels(service, topic).inc()
                await asyncio.sleep(RETRY.delay_s(attempt))
        finally:
            msg.raw_message = raw  # its offsets are committed
            WAITING.labels(service, topic).set(0)
            waits.ended(topic)

    async def _handle(
        self, call_next: Handler, msg: Message, records: list[ConsumerRecord], attempt: int
    ) -> Any:
        resolved = [(record, await self._resolved(record)) for record in records]
        for record, found in resolved:
            if isinstance(found, str):
                await self.guard.bury(record, found, attempt)
        sound = [(record, found) for record, found in resolved if not isinstance(found, str)]
        whole = [found for _, found in sound]
        if not whole:
            return None
        if whole != records:
            _put(msg, whole)
        records[:] = [record for record, _ in sound]  # a retry writes no letter again
        try:
            result = await call_next(msg)
        except (Conflict, Unavailable):
            raise
        # Whatever it is, it is raised, or it becomes the reason of a dead letter.
        except Exception as error:
            if attempt < MAX_ATTEMPTS and not isinstance(error, NEVER):
                raise
            for record, _ in sound:
                await self.guard.bury(record, f"{type(error).__name__}: {error}", attempt)
            return None
        EVENTS.labels(self.guard.service, records[0].topic, "done").inc(len(whole))
        self.guard.limit.done(len(whole))
        return result

    async def _resolved(self, record: ConsumerRecord) -> ConsumerRecord | str:
        """Return the record with its body, or why it is dead."""
        try:
            claim = claim_in(record.headers)
            if claim is None:
                return record
            value = await self.guard.bodies.read(claim)
        except Poison as error:
            return f"Poison: {error}"
        except BodyMissing as error:
            if time.monotonic() - self._began < BODY_WAIT_S:
                raise
            return f"{error}, waited for {BODY_WAIT_S:g} s"
        headers = tuple(pair for pair in record.headers if pair[0] != CLAIM_HEADER)
        return replace(record, value=value, headers=headers)


def _pieces(records: tuple[ConsumerRecord, ...]) -> list[list[ConsumerRecord]]:
    pieces: list[list[ConsumerRecord]] = [[]]
    size = 0
    for record in records:
        try:
            claim = claim_in(record.headers)
        except Poison:
            claim = None  # buried when it is resolved
        claimed = claim.size_bytes if claim is not None else 0
        if claimed and size and size + claimed > PIECE_BYTES:
            pieces.append([])
            size = 0
        pieces[-1].append(record)
        size += claimed
    return pieces


def _put(msg: Message, records: list[ConsumerRecord]) -> None:
    batch = isinstance(msg.raw_message, tuple | list)
    msg.raw_message = tuple(records) if batch else records[0]
    msg.body = [record.value for record in records] if batch else records[0].value
    msg.clear_cache()  # else the decoder's result of the piece before is used
