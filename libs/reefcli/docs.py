"""docs/events.md, made from the topic registry and the event models:  .venv/bin/python -m reefcli.docs > docs/events.md"""

import sys
from inspect import cleandoc

from reefcommon import events, topics


def events_page() -> str:
    """The page, as Markdown."""
    rows = "\n".join(_topic_row(topic) for topic in topics.ALL)
    sections = "\n".join(_event_section(event) for event in events.ALL)
    return f"""# Events

Made from `reefcommon.topics` and `reefcommon.events` by `python -m reefcli.docs`; a test keeps it true. Events are JSON,
frozen, in the past tense. Readers ignore fields that they do not know; a new meaning is a new type. Every topic has a `.dead`
beside it for what could never be handled.

| topic | events | key | partitions | kept | written by | read by (consumer groups) | what it is |
|---|---|---|---|---|---|---|---|
{rows}

Every event has `event_id` (its identity: the same id with the same content is a repeat), `at`, `scenario` and `traceparent`.
{sections}"""


def _topic_row(topic: topics.Topic) -> str:
    kept = "for ever" if topic.retention_ms < 0 else f"{topic.retention.days} days"
    names = ", ".join(f"`{_type(event)}`" for event in topic.events)
    writers, readers = ", ".join(topic.producers), ", ".join(topic.consumers)
    return f"| `{topic.name}` | {names} | {topic.key} | {topic.partitions} | {kept} | {writers} | {readers} | {topic.why} |"


def _event_section(event: type[events.Event]) -> str:
    own = [
        name
        for name in event.model_fields
        if name not in events.Event.model_fields and name != "type"
    ]
    fields = ", ".join(
        f"`{name}`" + ("" if event.model_fields[name].is_required() else "?") for name in own
    )
    return f"\n## {_type(event)}\n\n{cleandoc(event.__doc__ or '')}\n\nFields (? = may be absent): {fields or 'none of its own'}.\n"


def _type(event: type[events.Event]) -> str:
    return str(event.model_fields["type"].default)


if __name__ == "__main__":
    sys.stdout.write(events_page())
