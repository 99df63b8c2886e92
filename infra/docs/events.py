"""The parts of docs/events.md: the topic registry and the event models."""

from inspect import cleandoc

from reefcommon import events, topics


def topics_table() -> str:
    rows = [
        "| topic | events | key | partitions | kept | written by | consumer groups | use |",
        "|---|---|---|---|---|---|---|---|",
        *map(_topic_row, topics.ALL),
    ]
    return "\n".join(rows)


def events_section() -> str:
    """Return every event with its fields, each under a heading."""
    return "\n".join(map(_event_section, events.ALL))


def _topic_row(topic: topics.Topic) -> str:
    # Kafka's own meaning of a negative retention.
    kept = "for ever" if topic.retention_ms < 0 else f"{topic.retention.days} days"
    names = ", ".join(f"`{_type(event)}`" for event in topic.events)
    writers, readers = ", ".join(topic.producers), ", ".join(topic.consumers)
    cells = (
        f"`{topic.name}`",
        names,
        topic.key,
        topic.partitions,
        kept,
        writers,
        readers,
        topic.why,
    )
    return f"| {' | '.join(map(str, cells))} |"


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
