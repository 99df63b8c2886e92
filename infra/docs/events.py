"""The generated parts of docs/events.md."""

from inspect import cleandoc

from infra.docs.markdown import table
from reefcommon import events, topics


def topics_table() -> str:
    columns = "topic", "events", "key", "partitions", "kept", "written by", "consumer groups", "use"
    return table(columns, map(_topic_row, topics.ALL))


def events_section() -> str:
    """Return every event with its fields."""
    return "\n".join(map(_event_section, events.ALL))


def _topic_row(topic: topics.Topic) -> tuple[object, ...]:
    names = ", ".join(f"`{_type(event)}`" for event in topic.events)
    writers, readers = ", ".join(topic.producers), ", ".join(topic.consumers)
    name, size = f"`{topic.name}`", topic.partitions
    return name, names, topic.key, size, topic.kept, writers, readers, topic.why


def _event_section(event: type[events.Event]) -> str:
    fields = ", ".join(
        f"`{name}`{'' if field.is_required() else '?'}"
        for name, field in event.model_fields.items()
        if name not in events.Event.model_fields and name != "type"
    )
    text = f"\n## {_type(event)}\n\n{cleandoc(event.__doc__ or '')}\n\n"
    return f"{text}Fields (? = may be absent): {fields or 'none of its own'}.\n"


def _type(event: type[events.Event]) -> str:
    return str(event.model_fields["type"].default)
