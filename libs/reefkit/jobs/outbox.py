"""Sends the events of a job store to the broker, in order."""

import asyncio
from dataclasses import dataclass, field

from reefcommon import events, topics
from reefcommon.errors import Poison, Transient
from reefkit.bus import EventPublisher
from reefkit.jobs.store import JobStore
from reefkit.redis_lease import RedisLease

_TYPES = {cls.__name__: cls for cls in events.ALL}
_TOPICS = {topic.name: topic for topic in topics.ALL}
_AT_ONCE = 100


@dataclass(frozen=True, slots=True)
class Outbox:
    """The sender of a host. A repeated event has the same id."""

    store: JobStore
    publisher: EventPublisher
    lease: RedisLease
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def flush(self) -> None:
        """Send all events, and wait for the broker.

        Raises:
            LeaseLost: another host has taken over.
            Transient: the broker refuses an event, or does not answer.
        """
        async with self._sending:
            while rows := await asyncio.to_thread(self.store.unsent, _AT_ONCE):
                for number, topic, type_name, body in rows:
                    event = _TYPES[type_name].model_validate_json(body)
                    await self.lease.verify()
                    try:
                        await self.publisher.publish(event, _TOPICS[topic])
                    except Poison as error:
                        # Not dropped: the rest of the loop waits for this event. Seen in /readyz.
                        raise Transient(str(error)) from error
                    await asyncio.to_thread(self.store.acknowledge, number)
