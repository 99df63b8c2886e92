"""An event on its way to the log."""

from typing import NamedTuple

from reefcommon.events import Event
from reefcommon.topics import Topic


class LogEvent(NamedTuple):  # made faster than a frozen dataclass
    """An encoded event."""

    topic: str
    shard: str  # the key of its partition
    event_id: str
    data: bytes
    at: float  # Unix time
    traceparent: str = ""


def log_event(topic: Topic, event: Event, shard: str) -> LogEvent:
    """Encode an event for its topic."""
    return LogEvent(
        topic=topic.name,
        shard=shard,
        event_id=event.event_id,
        data=event.model_dump_json(exclude_none=True).encode(),
        at=event.at.timestamp(),
        traceparent=event.traceparent,
    )
