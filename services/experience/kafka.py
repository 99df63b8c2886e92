"""Kafka: batches of messages as arrivals, single arrivals to the dead-letter topics."""

import asyncio
import time
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import structlog
from aiokafka import ConsumerRecord, TopicPartition
from aiokafka.errors import KafkaError
from faststream.message import StreamMessage
from pydantic import Field, TypeAdapter, ValidationError

from reefcommon import events, topics
from reefcommon.errors import Unavailable
from reefcommon.events import InferenceRecorded
from reefkit.bus import Bus
from reefkit.guard import Guard
from reefkit.kafka_offsets import real_ends
from services.experience.ports import Arrival

Taken = InferenceRecorded | events.FeedbackReported | events.StepCompleted | events.SampleRefused
Signals = events.SignalComputed
Releases = (
    events.ReleasePublished | events.ReleasePending | events.ReleaseRejected | events.ScenarioHeld
)
log = structlog.get_logger()

TAKEN: TypeAdapter[Any] = TypeAdapter(
    Annotated[Taken | Signals | Releases | events.ServingSynced, Field(discriminator="type")]
)
KEYED = (topics.INFERENCES, topics.FEEDBACK)
"""What a client's own receipt can lie in."""
ASK_S = 2.0
POLL_S = 0.1


async def decode(message: StreamMessage[Any]) -> list[Arrival]:
    """Decode a batch. A message that cannot be decoded is an arrival with a flaw."""
    return [arrival(record) for record in message.raw_message]


def arrival(record: ConsumerRecord) -> Arrival:
    """Decode a message."""
    value = record.value or b""
    event, flaw = None, ""
    try:
        # From the bytes, not by way of a dict: events are large.
        event = TAKEN.validate_json(value)
    except ValidationError as error:
        flaw = f"ValidationError: {error}"
    if isinstance(event, InferenceRecorded) and (wrong := _impossible_token(event)) is not None:
        event, flaw = None, f"not a token id: {wrong}"
    place = record.topic, record.partition, record.offset
    return Arrival(*place, record.key, value, event, flaw, tuple(record.headers))


def _impossible_token(event: InferenceRecorded) -> int | None:
    # The store's columns are UInt32.
    sampled = (completion.token_ids for completion in event.completions)
    for tokens in (event.prompt_token_ids, *sampled):
        try:
            array("I", tokens)  # checks all in C, in a third of the time of `min` and `max`
        except OverflowError:
            return min(tokens) if min(tokens) < 0 else max(tokens)
    return None


@dataclass(frozen=True, slots=True)
class KafkaDeadLetters:
    """DeadLetters through the guard of the bus, which counts them all."""

    guard: Guard

    async def bury(self, dead: Arrival, reason: str, *, waited: bool = False) -> None:
        place, content = (dead.topic, dead.partition, dead.offset), (dead.key, dead.value)
        sizes = len(dead.key or b""), len(dead.value)
        # Without a timestamp and a checksum.
        record: ConsumerRecord = ConsumerRecord(*place, 0, 0, *content, None, *sizes, dead.headers)
        # Reports that wait in vain do not count: clients can make as many as they like.
        await self.guard.bury(record, reason, 1, counts=not waited)


@dataclass(slots=True)
class KafkaHandled:
    """The log is handled up to now when the group's commits pass the ends of now."""

    broker: Bus
    bootstrap: str
    _reached: float = 0.0
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)

    def has_reached(self, until: float) -> bool:
        """Return whether it is known that events up to `until` are stored."""
        return self._reached >= until

    async def reaches(self, until: float, *, within_s: float) -> bool:
        """Return whether events up to `until` (Unix seconds) are stored; waits `within_s`."""
        try:
            async with asyncio.timeout(within_s + ASK_S), self._one_at_a_time:
                if self._reached >= until:
                    return True
                asked_at = time.time()
                names = [topic.name for topic in KEYED]
                ends: dict[TopicPartition, int] = {}
                for found in (await real_ends(self.bootstrap, names)).values():
                    ends |= found
                while self._reached < asked_at:
                    if await self._passed(ends):
                        self._reached = asked_at
                    else:
                        await asyncio.sleep(POLL_S)
        except (KafkaError, TimeoutError, Unavailable) as error:
            log.warning("progress_unknown", reason=repr(error))
        return self._reached >= until

    async def _passed(self, ends: Mapping[TopicPartition, int]) -> bool:
        # FastStream's interface of a subscriber hides its consumer.
        consumers = [getattr(each, "consumer", None) for each in self.broker.subscribers]
        consumer = next((each for each in consumers if each is not None), None)
        if consumer is None:
            return False
        committed = await asyncio.gather(*(consumer.committed(place) for place in ends))
        pairs = zip(committed, ends.values(), strict=True)
        return all((offset or 0) >= end for offset, end in pairs)
