"""All events of a topic from its beginning, to rebuild a projection."""

from dataclasses import dataclass
from typing import Any, Union

import structlog
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from pydantic import TypeAdapter, ValidationError

from reefcommon.errors import Poison, Unavailable
from reefcommon.events import Event
from reefcommon.topics import Topic
from reefkit.bodies import FilesystemBodies, whole_value

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KafkaTopicLog:
    """Reads a topic without a consumer group."""

    topic: Topic
    bootstrap: str
    bodies: FilesystemBodies

    async def read(self) -> list[Event]:
        """Return every event, in order within a partition. Raises Unavailable."""
        consumer = AIOKafkaConsumer(
            bootstrap_servers=[address.strip() for address in self.bootstrap.split(",")],
            client_id="reef-topic-log",
            enable_auto_commit=False,
            auto_offset_reset="earliest",
        )
        try:
            await consumer.start()
            return await self._drain(consumer)
        except KafkaError as error:
            raise Unavailable(
                f"cannot read {self.topic.name} from {self.bootstrap}: {error!r}"
            ) from error
        finally:
            await consumer.stop()

    async def _drain(self, consumer: AIOKafkaConsumer) -> list[Event]:
        partitions = await self._partitions(consumer)
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        # Tansu may state an end that is too low; the high watermark of a fetch is right.
        ends = await consumer.end_offsets(partitions)
        kinds: Any = Union[self.topic.events]  # noqa: UP007
        reader: TypeAdapter[Event] = TypeAdapter(kinds)
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
                    # A missing body is waited for: a projection without its event is wrong.
                    try:
                        value = await whole_value(record.value, record.headers, self.bodies)
                        events.append(reader.validate_json(value))
                    except (ValidationError, Poison) as error:
                        log.error(
                            "event_unreadable",
                            topic=self.topic.name,
                            partition=record.partition,
                            offset=record.offset,
                            reason=str(error),
                        )
        return events

    async def _partitions(self, consumer: AIOKafkaConsumer) -> list[TopicPartition]:
        name = self.topic.name
        numbers = consumer.partitions_for_topic(name)
        if not numbers:
            # Metadata of a topic that was not asked for comes with the first full refresh.
            await consumer.topics()
            numbers = consumer.partitions_for_topic(name)
        if not numbers:
            raise Unavailable(f"topic {name} does not exist yet")
        return [TopicPartition(name, number) for number in sorted(numbers)]
