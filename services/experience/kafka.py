"""Kafka: batches of messages as arrivals, single messages to the dead-letter topic."""

from dataclasses import dataclass
from typing import Annotated, Any

from aiokafka import ConsumerRecord
from aiokafka.errors import KafkaError
from faststream.message import StreamMessage
from pydantic import Field, TypeAdapter, ValidationError

from reefcommon.bus import Guard, lags
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
TAKEN: TypeAdapter[Any] = TypeAdapter(Annotated[Taken, Field(discriminator="type")])
MAX_TOKEN_ID = 2**32 - 1


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
    return Arrival(record.topic, record.partition, record.offset, record.key, value, event, flaw)


def _impossible_token(event: InferenceRecorded) -> int | None:
    for tokens in (event.prompt_token_ids, *(completion.token_ids for completion in event.completions)):
        if tokens and not (min(tokens) >= 0 and max(tokens) <= MAX_TOKEN_ID):
            return min(tokens) if min(tokens) < 0 else max(tokens)
    return None


@dataclass(frozen=True, slots=True)
class KafkaDeadLetters:
    """DeadLetters by way of the guard of the bus, so that all dead letters look alike and are counted alike."""

    guard: Guard

    async def bury(self, dead: Arrival, reason: str) -> None:
        """Write one arrival to the dead-letter topic of its topic. Raises Unavailable where the broker does not acknowledge."""
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
            headers=(),
        )
        try:
            await self.guard.bury(record, reason, 1)
        except KafkaError as error:
            raise Unavailable(f"the broker did not acknowledge a dead letter of {dead.topic}: {error!r}") from error


async def backlog(guard: Guard, topic: str) -> int:
    """Messages of `topic` that wait in the partitions of this process."""
    assert guard.broker is not None
    return sum(row.lag for row in await lags(guard.broker) if row.topic == topic)
