"""All events of a topic from its beginning, to rebuild a projection."""

from dataclasses import dataclass
from typing import Any, Union

import structlog
from aiokafka.errors import KafkaError
from pydantic import TypeAdapter, ValidationError

from reefcommon.errors import Poison, Unavailable
from reefcommon.events import Event
from reefcommon.topics import Topic
from reefkit.bodies import FilesystemBodies, whole_value
from reefkit.kafka_offsets import open_consumer, real_ends

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KafkaTopicLog:
    """Reads a topic without a consumer group."""

    topic: Topic
    bootstrap: str
    bodies: FilesystemBodies

    async def read(self) -> list[Event]:
        """Return every event, in order within a partition. Raises Unavailable."""
        name = self.topic.name
        try:
            return await self._read(name)
        except KafkaError as error:
            raise Unavailable(f"cannot read {name} from {self.bootstrap}: {error!r}") from error

    async def _read(self, name: str) -> list[Event]:
        ends = (await real_ends(self.bootstrap, [name]))[name]
        if not ends:
            raise Unavailable(f"topic {name} does not exist yet")
        kinds: Any = Union[self.topic.events]  # noqa: UP007
        decoder: TypeAdapter[Event] = TypeAdapter(kinds)
        events: list[Event] = []
        async with open_consumer(self.bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign(list(ends))
            await consumer.seek_to_beginning(*ends)
            while any([await consumer.position(place) < end for place, end in ends.items()]):
                for records in (await consumer.getmany(timeout_ms=1000)).values():
                    for record in records:
                        # A missing body is waited for: a projection without its event is wrong.
                        try:
                            value = await whole_value(record.value, record.headers, self.bodies)
                            events.append(decoder.validate_json(value))
                        except (ValidationError, Poison) as error:
                            at = {"partition": record.partition, "offset": record.offset}
                            log.error("event_unreadable", topic=name, reason=str(error), **at)
        return events
