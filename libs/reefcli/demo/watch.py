"""Follows the loop where anybody can: on the topics. A plain consumer without a group, from the beginning of the log."""

from collections.abc import AsyncIterator
from typing import Annotated

from aiokafka import AIOKafkaConsumer
from pydantic import Field, TypeAdapter, ValidationError

from reefcommon import topics
from reefcommon.events import (
    CandidateEvaluated,
    CandidateProposed,
    ReleasePending,
    ReleasePublished,
    ReleaseRejected,
    SampleRefused,
    ServingSynced,
    StepCompleted,
)

Seen = (
    StepCompleted
    | SampleRefused
    | CandidateProposed
    | CandidateEvaluated
    | ReleasePublished
    | ReleasePending
    | ReleaseRejected
    | ServingSynced
)
_SEEN: TypeAdapter[Seen] = TypeAdapter(Annotated[Seen, Field(discriminator="type")])


async def follow(bootstrap: str) -> AsyncIterator[Seen]:
    """Everything that the recipes, the evaluator and the publisher have said and will say, in the order of each topic."""
    names = [
        topic.name
        for topic in (topics.TRAINING, topics.CANDIDATES, topics.EVALUATIONS, topics.RELEASES)
    ]
    consumer = AIOKafkaConsumer(
        *names, bootstrap_servers=bootstrap, auto_offset_reset="earliest", enable_auto_commit=False
    )
    await consumer.start()
    try:
        async for record in consumer:
            try:
                yield _SEEN.validate_json(record.value)
            except ValidationError:
                continue  # somebody else's event type: not ours to show
    finally:
        await consumer.stop()
