"""An event on its way to the log."""

from dataclasses import dataclass

from reefcommon.events import Event
from reefcommon.topics import Topic


@dataclass(frozen=True, slots=True)
class LogEvent:
    """`data`: the encoded event; `shard`: the key of its partition; `at`: its Unix time."""

    topic: str
    shard: str
    event_id: str
    data: bytes
    at: float
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
