"""`reef topics`: the topics and their events; with `--live`, also counts and lag."""

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reefcli.errors import CommandFailed
from reefcli.options import DEFAULT_STATE_DIR, AsJson, Bootstrap, StateDir, no_stack_words
from reefcli.output import print_json, print_table
from reefcommon import topics as registry
from reefcommon.topics import Topic
from reefstack.spec import KafkaAnswers
from reefstack.state import running

if TYPE_CHECKING:
    from aiokafka import TopicPartition


_COLUMNS = ["topic", "events", "key", "partitions", "retention", "producers", "consumers", "why"]


def topics(
    live: Annotated[
        bool, typer.Option("--live", help="Ask the broker: partitions, end offsets, consumer lag.")
    ] = False,
    bootstrap: Bootstrap = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """The topics: their events, key, retention, producers and consumers.

    Examples:

      reef topics

      reef topics --live

      reef topics --live --bootstrap broker:9092 --json
    """
    if live:
        _show_live(asyncio.run(_ask(address(bootstrap, state_dir))), as_json=as_json)
        return
    rows = [_described(topic) for topic in registry.ALL]
    if as_json:
        print_json(rows)
    else:
        print_table(_COLUMNS, [[_joined(row[column]) for column in _COLUMNS] for row in rows])


def _show_live(depths: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(depths)
        return
    columns = ("topic", "partitions", "events", "lag by consumer group")
    print_table(columns, [_depth_row(depth) for depth in depths])
    if any(behind is None for depth in depths for behind in depth["lag"].values()):
        typer.echo(
            "without offsets: reads the topic from its beginning at each start, "
            "or has not handled an event of it yet",
            err=True,
        )


def _described(topic: Topic) -> dict[str, Any]:
    names = ("key", "partitions", "producers", "consumers", "why")
    events = [event.__name__ for event in topic.events]
    facts = {name: getattr(topic, name) for name in names}
    own = {"topic": topic.name, "retention": topic.kept, "dead_letters": topic.dead}
    return {**own, "events": events, **facts}


def _joined(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list | tuple) else str(value)


def _depth_row(depth: dict[str, Any]) -> tuple[str, int, int, str]:
    lags = depth["lag"].items()
    lag = [f"{group} {'without offsets' if lag is None else lag}" for group, lag in lags]
    return depth["topic"], depth["partitions"], sum(depth["end_offsets"].values()), ", ".join(lag)


def address(bootstrap: str | None, state_dir: StateDir) -> str:
    """Return host:port of the broker. Raises CommandFailed if neither it nor a stack is named."""
    state = running(state_dir)
    found = bootstrap or (state.urls.get("kafka") if state else None)
    if not found:
        raise CommandFailed(no_stack_words(state_dir, "name a broker with --bootstrap host:port"))
    return found


async def _ask(bootstrap: str) -> list[dict[str, Any]]:
    from reefcli.replay.log import asking
    from reefkit.kafka_offsets import real_ends
    from reefstack.probes import why_not_ready

    if reason := await why_not_ready(KafkaAnswers(bootstrap)):
        raise CommandFailed(f"no broker answers at {bootstrap}: {reason}")
    readers = {topic.name: topic.consumers for topic in registry.ALL}
    readers |= {topic.dead: () for topic in registry.ALL}
    depths = []
    with asking(bootstrap):
        # The embedded broker's own answer lies behind the last batch.
        for topic, ends in (await real_ends(bootstrap, list(readers))).items():
            lag = {group: await _lag(bootstrap, group, ends) for group in readers[topic] if ends}
            offsets = {place.partition: end for place, end in ends.items()}
            depth = {"topic": topic, "partitions": len(ends), "end_offsets": offsets, "lag": lag}
            depths.append(depth)
    return depths


async def _lag(bootstrap: str, group: str, ends: "dict[TopicPartition, int]") -> int | None:
    from reefcli.replay.log import committed

    offsets = await committed(bootstrap, group, ends)
    # A group without a commit has either read nothing yet or reads the whole topic at each start.
    if all(position is None for position in offsets.values()):
        return None if any(ends.values()) else 0
    return sum(max(end - (offsets[place] or 0), 0) for place, end in ends.items())
