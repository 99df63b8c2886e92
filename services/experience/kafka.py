"""Kafka: batches of messages as arrivals, single messages to the dead-letter topic."""

import asyncio
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

import structlog
from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError
from faststream.message import StreamMessage
from pydantic import Field, TypeAdapter, ValidationError

from reefcommon import topics
from reefcommon.errors import Unavailable
from reefcommon.events import (
    FeedbackReported,
    InferenceRecorded,
    ReleasePending,
    ReleasePublished,
    ReleaseRejected,
    SampleRefused,
    ServingSynced,
    StepCompleted,
)
from reefkit.bus import Bus, lags
from reefkit.guard import Guard
from reefkit.kafka_offsets import real_ends
from services.experience.ports import Arrival

Taken = (
    InferenceRecorded
    | FeedbackReported
    | StepCompleted
    | SampleRefused
    | ReleasePublished
    | ReleasePending
    | ReleaseRejected
    | ServingSynced
)
log = structlog.get_logger()

TAKEN: TypeAdapter[Any] = TypeAdapter(Annotated[Taken, Field(discriminator="type")])
KEYED = (topics.INFERENCES, topics.FEEDBACK)
"""What a client's own receipt can lie in."""
ASK_S = 2.0
BACKLOG_WITHIN_S = 30.0
POLL_S = 0.1
FETCH_S = 0.05  # what the broker's answer may be older than its arrival
SLACK_S = 5.0  # how far events of one partition may be out of order in time


async def decode(message: StreamMessage[Any]) -> list[Arrival]:
    """A batch as arrivals. What cannot be decoded is an arrival with a flaw, so that the others go on."""
    return [arrival(record) for record in message.raw_message]


def arrival(record: ConsumerRecord) -> Arrival:
    """One message, decoded from its bytes at once (not by way of a dict)."""
    value = record.value or b""
    event, flaw = None, ""
    try:
        event = TAKEN.validate_json(value)
    except ValidationError as error:
        flaw = f"ValidationError: {error}"
    if isinstance(event, InferenceRecorded) and (wrong := _impossible_token(event)) is not None:
        event, flaw = None, f"not a token id: {wrong}"
    return Arrival(
        record.topic,
        record.partition,
        record.offset,
        record.key,
        value,
        event,
        flaw,
        tuple(record.headers),
    )


def _impossible_token(event: InferenceRecorded) -> int | None:
    for tokens in (
        event.prompt_token_ids,
        *(completion.token_ids for completion in event.completions),
    ):
        try:
            array("I", tokens)  # looks at each one in C, in a third of the time of `min` and `max`
        except OverflowError:
            return min(tokens) if min(tokens) < 0 else max(tokens)
    return None


@dataclass(frozen=True, slots=True)
class KafkaDeadLetters:
    """DeadLetters by way of the guard of the bus, so that all dead letters look alike and are counted alike."""

    guard: Guard

    async def bury(self, dead: Arrival, reason: str, *, waited: bool = False) -> None:
        record: ConsumerRecord = ConsumerRecord(
            topic=dead.topic,
            partition=dead.partition,
            offset=dead.offset,
            timestamp=0,
            timestamp_type=0,
            key=dead.key,
            value=dead.value,
            checksum=None,
            serialized_key_size=len(dead.key or b""),
            serialized_value_size=len(dead.value),
            headers=dead.headers,
        )
        # Reports that wait in vain do not count: clients can make as many as they like.
        await self.guard.bury(record, reason, 1, counts=not waited)


@dataclass(slots=True)
class KafkaHandled:
    """Handled by way of the group's commits: of this process's partitions by its own fetches, of others' by asking the broker."""

    broker: Bus
    handled_at: Mapping[tuple[str, int], datetime]
    bootstrap: str
    _reached: float = 0.0

    async def reaches(self, until: float, *, within_s: float) -> bool:
        """Once reached it stays reached: asked for the same time again, nobody is asked."""
        deadline = time.monotonic() + within_s
        while self._reached < until:
            try:
                async with asyncio.timeout(ASK_S):
                    self._reached = max(self._reached, await self._look())
            except (KafkaError, TimeoutError, Unavailable) as error:
                log.warning("progress_unknown", reason=repr(error))
            if self._reached < until and time.monotonic() > deadline:
                return False
            await asyncio.sleep(0 if self._reached >= until else POLL_S)
        return True

    async def _look(self) -> float:
        """The time until which everything is handled."""
        consumers = [subscriber.consumer for subscriber in self.broker.subscribers]  # type: ignore[attr-defined]
        consumer = next((one for one in consumers if one is not None), None)
        if consumer is None:
            return 0.0
        places = [TopicPartition(topic.name, n) for topic in KEYED for n in range(topic.partitions)]
        mine = consumer.assignment()
        asked_at = time.time()
        ends: dict[TopicPartition, int] = {}
        if any(tp not in mine for tp in places):
            for found in (
                await real_ends(self.bootstrap, [topic.name for topic in KEYED])
            ).values():
                ends |= found
        committed = dict(
            zip(
                places,
                await asyncio.gather(*(consumer.committed(tp) for tp in places)),
                strict=True,
            )
        )
        return min(
            self._until(consumer, tp, committed[tp] or 0)
            if tp in mine
            else asked_at
            if (committed[tp] or 0) >= ends[tp]
            else 0.0
            for tp in places
        )

    def _until(self, consumer: AIOKafkaConsumer, tp: TopicPartition, committed: int) -> float:
        end, polled_ms = consumer.highwater(tp), consumer.last_poll_timestamp(tp)
        if end is None or polled_ms is None:
            return 0.0
        if committed >= end:
            return float(polled_ms) / 1000 - FETCH_S
        at = self.handled_at.get((tp.topic, tp.partition))
        return at.timestamp() - SLACK_S if at is not None else 0.0


async def backlog(bus: Bus, topic: str) -> int:
    """Messages of `topic` that wait in the partitions of this process. Raises Unavailable."""
    return sum(row.lag for row in await lags(bus, wait_s=BACKLOG_WITHIN_S) if row.topic == topic)
