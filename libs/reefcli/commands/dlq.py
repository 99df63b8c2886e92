"""`reef dlq`: events that could not be handled; look at them, send them again, or let them go."""

import asyncio
from typing import Annotated, Any

import orjson
import typer

from reefcli import dead_letters
from reefcli.commands.topics import address
from reefcli.dead_letters import Action, Letter, Letters, Wanted
from reefcli.errors import CommandFailed
from reefcli.options import DEFAULT_STATE_DIR, AsJson, Bootstrap, StateDir
from reefcli.output import ago, console, print_json, print_story, print_table
from reefcommon import topics
from reefkit.bodies import FilesystemBodies


def _known(topic: str | None) -> str | None:
    """A topic that has dead letters at all, or may have: a mistyped one would look like good news."""
    if topic is not None and topic not in {
        name for one in topics.ALL for name in (one.name, one.dead)
    }:
        raise CommandFailed(
            f"there is no topic {topic!r}; there are {', '.join(one.name for one in topics.ALL)}"
        )
    return topic


Topic = Annotated[
    str | None, typer.Option("--topic", help="Only those of this topic.", callback=_known)
]
Group = Annotated[
    str | None, typer.Option("--group", help="Only those that this consumer group gave up.")
]
Reason = Annotated[
    str | None, typer.Option("--reason", help="Only those whose reason contains this text.")
]
Scenario = Annotated[str | None, typer.Option("--scenario", help="Only those of this scenario.")]
Ids = Annotated[
    list[str] | None, typer.Argument(help="Ids, or beginnings of ids, from `reef dlq list`.")
]
Everything = Annotated[
    bool, typer.Option("--all", help="All that the other options leave, instead of ids.")
]

dlq = typer.Typer(
    name="dlq",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help="""Dead letters: events that a consumer could never handle, each with its reason. Nothing of them is lost.

Look (list, show), mend what was wrong, then send them again (retry), or let them go (drop). Both are noted in the log for good: a letter
that was dealt with is not listed any more, and dealing with it twice does nothing.
""",
)


@dlq.command("list")
def list_(
    topic: Topic = None,
    group: Group = None,
    reason: Reason = None,
    scenario: Scenario = None,
    handled: Annotated[
        bool, typer.Option("--handled", help="Those that were dealt with, too.")
    ] = False,
    limit: Annotated[int, typer.Option(help="How many at most, the latest.", min=1)] = 50,
    bootstrap: Bootstrap = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """The dead letters that nobody has dealt with, the latest first.

    Examples:

      reef dlq list

      reef dlq list --topic reef.feedback.v1 --reason "unknown receipts" --json
    """
    letters = asyncio.run(dead_letters.read(address(bootstrap, state_dir), _bodies(state_dir)))
    wanted = Wanted(topic, group, reason, scenario, handled)
    found = sorted(
        (letter for letter in letters.found.values() if wanted.meets(letter)),
        key=lambda one: one.last.at,
        reverse=True,
    )
    if as_json:
        print_json([_described(letter) for letter in found[:limit]])
        return
    columns = ("id", "topic", "place", "group", "times", "when", "handled", "reason")
    print_table(
        columns,
        [_row(letter) for letter in found[:limit]],
        whole=("topic",),
        empty="no dead letters",
    )
    if len(found) > limit:
        console().print(f"{len(found) - limit} more; --limit shows them", style="dim")


@dlq.command()
def show(
    letter_id: Annotated[
        str, typer.Argument(help="An id, or its beginning, from `reef dlq list`.")
    ],
    bootstrap: Bootstrap = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """One dead letter: why, where from, and the event's bytes.

    Example:

      reef dlq show dead-3f0c
    """
    letters = asyncio.run(dead_letters.read(address(bootstrap, state_dir), _bodies(state_dir)))
    (letter,) = letters.named([letter_id])
    described = _described(letter) | {"event": _body(letter)}
    if as_json:
        print_json(described)
        return
    event = described.pop("event")
    lines = [
        (name.replace("_", " "), str(value))
        for name, value in described.items()
        if value is not None
    ]
    print_story(
        [
            *lines,
            (
                "event",
                event
                if isinstance(event, str)
                else orjson.dumps(event, option=orjson.OPT_INDENT_2).decode(),
            ),
        ]
    )


@dlq.command()
def retry(
    ids: Ids = None,
    everything: Everything = False,
    topic: Topic = None,
    group: Group = None,
    reason: Reason = None,
    scenario: Scenario = None,
    bootstrap: Bootstrap = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """Send events to their topics again, as they were. Every consumer of the topic sees them; those that had them tell a repeat by its id.

    Examples:

      reef dlq retry dead-3f0c

      reef dlq retry --all --topic reef.samples.v1 --group trainer
    """
    _settle(
        "retried",
        ids,
        Wanted(topic, group, reason, scenario),
        address(bootstrap, state_dir),
        _bodies(state_dir),
        everything=everything,
        as_json=as_json,
    )


@dlq.command()
def drop(
    ids: Ids = None,
    everything: Everything = False,
    topic: Topic = None,
    group: Group = None,
    reason: Reason = None,
    scenario: Scenario = None,
    bootstrap: Bootstrap = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """Let events go: they are not listed any more. Their bytes stay in the log (`reef dlq list --handled`).

    Examples:

      reef dlq drop dead-3f0c dead-77a1

      reef dlq drop --all --topic reef.feedback.v1 --reason "unknown receipts"
    """
    _settle(
        "dropped",
        ids,
        Wanted(topic, group, reason, scenario),
        address(bootstrap, state_dir),
        _bodies(state_dir),
        everything=everything,
        as_json=as_json,
    )


def _settle(
    action: Action,
    ids: list[str] | None,
    wanted: Wanted,
    bootstrap: str,
    bodies: FilesystemBodies,
    *,
    everything: bool,
    as_json: bool,
) -> None:
    if bool(ids) == everything:
        raise CommandFailed(
            "which ones? Give ids from `reef dlq list`, or --all (with --topic, --group, --reason or --scenario)"
        )

    async def carry_out() -> tuple[list[Letter], list[Letter]]:
        letters: Letters = await dead_letters.read(bootstrap, bodies)
        chosen = (
            letters.named(ids)
            if ids
            else [letter for letter in letters.found.values() if wanted.meets(letter)]
        )
        before = [letter for letter in chosen if letter.settled is not None]
        once = {letter.id: letter for letter in chosen}.values()
        return before, await dead_letters.settle(bootstrap, bodies, once, action) if chosen else []

    before, done = asyncio.run(carry_out())
    if as_json:
        print_json(
            {
                action: [letter.id for letter in done],
                "handled_before": [letter.id for letter in before],
            }
        )
        return
    for letter in before:
        assert letter.settled is not None
        typer.echo(
            f"{letter.id}: {letter.settled.action} before ({ago(letter.settled.at.isoformat())}); nothing done"
        )
    for letter in done:
        typer.echo(
            f"{letter.id}: {action} ({letter.last.topic} [{letter.last.partition}] {letter.last.offset})"
        )
    if not before and not done:
        typer.echo("no dead letters like that")


def _bodies(state_dir: StateDir) -> FilesystemBodies:
    return FilesystemBodies(state_dir / "bodies")


def _row(letter: Letter) -> tuple[Any, ...]:
    one = letter.last
    place = f"[{one.partition}] {one.offset}"
    short = one.reason.replace("\n", " ")[:100]
    return (
        letter.id[:17],
        one.topic,
        place,
        one.group,
        letter.count,
        ago(one.at.isoformat()),
        _handled(letter),
        short,
    )


def _handled(letter: Letter) -> str:
    return letter.settled.action if letter.settled else ""


def _described(letter: Letter) -> dict[str, Any]:
    one = letter.last
    return {
        "id": letter.id,
        "topic": one.topic,
        "partition": one.partition,
        "offset": one.offset,
        "key": one.key,
        "group": one.group,
        "scenario": one.scenario,
        "reason": one.reason,
        "attempts": one.attempts,
        "times": letter.count,
        "first_at": letter.first.at.isoformat(),
        "last_at": one.at.isoformat(),
        "handled": letter.settled.action if letter.settled else None,
        "handled_at": letter.settled.at.isoformat() if letter.settled else None,
    }


def _body(letter: Letter) -> Any:
    """The event as JSON where it is, else as text."""
    try:
        return orjson.loads(letter.body)
    except ValueError:
        return letter.body.decode("utf-8", errors="backslashreplace")
