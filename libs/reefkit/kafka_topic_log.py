"""All events of a topic from its beginning, for the rebuild of a projection."""

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
from reefkit.kafka_offsets import real_ends

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
            ends = (await real_ends(self.bootstrap, (self.topic.name,)))[self.topic.name]
            if not ends:
                raise Unavailable(f"topic {self.topic.name} does not exist yet")
            await consumer.start()
            return await self._drain(consumer, ends)
        except KafkaError as error:
            raise Unavailable(
                f"cannot read {self.topic.name} from {self.bootstrap}: {error!r}"
            ) from error
        finally:
            await consumer.stop()

    async def _drain(
        self, consumer: AIOKafkaConsumer, ends: dict[TopicPartition, int]
    ) -> list[Event]:
        consumer.assign(ends)
        await consumer.seek_to_beginning(*ends)
        kinds: Any = Union[self.topic.events]  # noqa: UP007
        reader: TypeAdapter[Event] = TypeAdapter(kinds)
        events: list[Event] = []
        # Also the events that come while it reads: a fetch names the end again.
        while any(
            [
                await consumer.position(at) < max(end, consumer.highwater(at) or 0)
                for at, end in ends.items()
            ]
        ):
            for records in (await consumer.getmany(timeout_ms=1000)).values():
                for record in records:
                    # A missing body is waited for: a projection without its event is wrong.
                    try:
                        value = await whole_value(record.value, record.headers, self.bodies)
                        events.append(reader.validate_json(value))
                    except (ValidationError, Poison) as error:
                        place = {"partition": record.partition, "offset": record.offset}
                        reason = str(error)
                        log.error("event_unreadable", topic=record.topic, reason=reason, **place)
        return events
