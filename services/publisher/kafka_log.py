"""The release log from its beginning, for the rebuild of the heads."""

from dataclasses import dataclass

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from pydantic import TypeAdapter, ValidationError

from reefcommon import topics
from reefcommon.errors import Poison, Unavailable
from reefcommon.events import Event, Publication
from reefkit.bodies import FilesystemBodies, whole_value

log = structlog.get_logger()

_EVENTS: TypeAdapter[Event] = TypeAdapter(Publication)


@dataclass(frozen=True, slots=True)
class KafkaReleaseLog:
    """ReleaseLog on Kafka: reads `reef.releases.v1` without a consumer group."""

    bootstrap: str
    bodies: FilesystemBodies

    async def read(self) -> list[Event]:
        consumer = AIOKafkaConsumer(
            bootstrap_servers=[address.strip() for address in self.bootstrap.split(",")],
            client_id="reef-publisher-replay",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        try:
            await consumer.start()
            return await _drain(consumer, self.bodies)
        except KafkaError as error:
            raise Unavailable(
                f"cannot read {topics.RELEASES.name} from {self.bootstrap}: {error!r}"
            ) from error
        finally:
            await consumer.stop()


async def _drain(consumer: AIOKafkaConsumer, bodies: FilesystemBodies) -> list[Event]:
    name = topics.RELEASES.name
    partitions = [
        TopicPartition(name, number)
        for number in sorted(consumer.partitions_for_topic(name) or await _partitions(consumer))
    ]
    consumer.assign(partitions)
    await consumer.seek_to_beginning(*partitions)
    # Tansu may state an end that is too low; the high watermark of a fetch is right.
    ends = await consumer.end_offsets(partitions)
    events: list[Event] = []
    while any(
        [
            await consumer.position(partition)
            < max(ends[partition], consumer.highwater(partition) or 0)
            for partition in partitions
        ]
    ):
        for records in (await consumer.getmany(timeout_ms=1000)).values():
            for record in records:
                try:
                    value = await whole_value(record.value, record.headers, bodies)
                    events.append(_EVENTS.validate_json(value))
                # A missing body is waited for: heads rebuilt without a release would be wrong.
                except (ValidationError, Poison) as error:
                    log.error(
                        "release_event_unreadable",
                        partition=record.partition,
                        offset=record.offset,
                        reason=str(error),
                    )
    return events


async def _partitions(consumer: AIOKafkaConsumer) -> set[int]:
    # Metadata of a topic that was not asked for comes with the first full refresh.
    await consumer.topics()
    found: set[int] | None = consumer.partitions_for_topic(topics.RELEASES.name)
    if not found:
        raise Unavailable(f"topic {topics.RELEASES.name} does not exist yet")
    return found
