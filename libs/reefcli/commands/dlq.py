"""Dead letters: events that a consumer could never handle, each with its reason."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from reefcli.commands.topics import address
from reefcli.dead_letters import Action, DeadLetterLog, Letter, LetterFilter
from reefcli.errors import CommandFailed
from reefcli.options import DEFAULT_STATE_DIR, PLAIN, AsJson, Bootstrap, StateDir
from reefcli.output import ago, print_json, print_story, print_table
from reefcommon import topics
from reefkit.bodies import FilesystemBodies


def _known(topic: str | None) -> str | None:
    # A mistyped topic would have no dead letters, which looks like good news.
    if topic is not None and topic not in {n for t in topics.ALL for n in (t.name, t.dead)}:
        names = ", ".join(known.name for known in topics.ALL)
        raise CommandFailed(f"there is no topic {topic!r}; there are {names}")
    return topic


_only = "Only those {}.".format
Topic = Annotated[str | None, typer.Option(help=_only("of this topic"), callback=_known)]
Group = Annotated[str | None, typer.Option(help=_only("that this service gave up, as `trainer`"))]
Reason = Annotated[str | None, typer.Option(help=_only("whose reason contains this text"))]
Scenario = Annotated[str | None, typer.Option(help=_only("of this scenario"))]
_IDS = "Ids, or beginnings of ids, from `reef dlq list`."
Ids = Annotated[list[str] | None, typer.Argument(help=_IDS)]
_ALL = "All that the other options leave, instead of ids."
Everything = Annotated[bool, typer.Option("--all", help=_ALL)]

dlq = typer.Typer(
    name="dlq",
    no_args_is_help=True,
    **PLAIN,
    help=f"""{__doc__}

None of them is lost. Look (list, show), mend the cause, then send them again (retry), or drop them
(drop). Both are noted in the log for good: a letter that was dealt with is not listed any more, and
a second retry or drop does nothing.
""",
)


def _log(bootstrap: str | None, state_dir: Path) -> DeadLetterLog:
    return DeadLetterLog(address(bootstrap, state_dir), FilesystemBodies(state_dir / "bodies"))


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
    """List the dead letters that were not dealt with, the latest first.

    Examples:

      reef dlq list

      reef dlq list --topic reef.feedback.v1 --reason "unknown receipts" --json
    """
    letters = asyncio.run(_log(bootstrap, state_dir).read())
    found = letters.meeting(LetterFilter(topic, group, reason, scenario, handled))
    found.sort(key=lambda letter: letter.last.at, reverse=True)
    if as_json:
        print_json([_described(letter) for letter in found[:limit]])
        return
    columns = ("id", "topic", "place", "group", "times", "when", "handled", "reason")
    rows = [_row(letter) for letter in found[:limit]]
    print_table(columns, rows, whole=("topic",), empty="no dead letters")
    if len(found) > limit:
        typer.echo(f"({len(found) - limit} more: --limit N shows them)", err=True)


@dlq.command()
def show(
    letter_id: Annotated[
        str, typer.Argument(help="An id, or its beginning, from `reef dlq list`.")
    ],
    bootstrap: Bootstrap = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """Show a dead letter: its reason, its origin, and the event's bytes.

    Example:

      reef dlq show dead-3f0c
    """
    letters = asyncio.run(_log(bootstrap, state_dir).read())
    (letter,) = letters.named([letter_id])
    described, event = _described(letter), _body(letter)
    if as_json:
        print_json(described | {"event": event})
        return
    lines = [(k.replace("_", " "), str(v)) for k, v in described.items() if v is not None]
    indented = orjson.dumps(event, option=orjson.OPT_INDENT_2).decode()
    print_story([*lines, ("event", event if isinstance(event, str) else indented)])


def _add_command(name: str, action: Action, text: str) -> None:

    @dlq.command(name, help=text)
    def command(
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
        # Neither, or both: the person means something else.
        if bool(ids) == everything:
            every = "--all (with --topic, --group, --reason or --scenario)"
            raise CommandFailed(f"which ones? Give ids from `reef dlq list`, or {every}")
        wanted = LetterFilter(topic, group, reason, scenario)
        before, done = asyncio.run(_settle(action, ids, wanted, _log(bootstrap, state_dir)))
        if as_json:
            print_json({action: [x.id for x in done], "handled_before": [x.id for x in before]})
        else:
            _tell(action, before, done)


_add_command(
    "retry",
    "retried",
    """Send events to their topics again, as they were.

    Each consumer of the topic sees them; a consumer that had them tells a repeat by its id.

    Examples:

      reef dlq retry dead-3f0c

      reef dlq retry --all --topic reef.samples.v1 --group trainer
    """,
)
_add_command(
    "drop",
    "dropped",
    """Let events go: they are not listed any more.

    Their bytes stay in the log (`reef dlq list --handled`).

    Examples:

      reef dlq drop dead-3f0c dead-77a1

      reef dlq drop --all --topic reef.feedback.v1 --reason "unknown receipts"
    """,
)


async def _settle(
    action: Action, ids: list[str] | None, wanted: LetterFilter, log: DeadLetterLog
) -> tuple[list[Letter], list[Letter]]:
    """Returns the letters that were dealt with before, and those that were now."""
    letters = await log.read()
    chosen = letters.named(ids) if ids else letters.meeting(wanted)
    before = [letter for letter in chosen if letter.settled is not None]
    # The same letter may be named twice, by its id and by its beginning.
    once = {letter.id: letter for letter in chosen}.values()
    return before, await log.settle(once, action) if chosen else []


def _tell(action: Action, before: list[Letter], done: list[Letter]) -> None:
    for letter in before:
        assert letter.settled is not None
        when = ago(letter.settled.at.isoformat())
        typer.echo(f"{letter.id}: {letter.settled.action} before ({when}); nothing done")
    for letter in done:
        event = letter.last
        typer.echo(f"{letter.id}: {action} ({event.topic} [{event.partition}] {event.offset})")
    if not before and not done:
        typer.echo("no dead letters like that")


def _row(letter: Letter) -> tuple[Any, ...]:
    event = letter.last
    place, when = f"[{event.partition}] {event.offset}", ago(event.at.isoformat())
    handled = letter.settled.action if letter.settled else ""
    short = event.reason.replace("\n", " ")[:100]
    return letter.id[:17], event.topic, place, event.group, letter.count, when, handled, short


def _described(letter: Letter) -> dict[str, Any]:
    event, settled = letter.last, letter.settled
    names = ("topic", "partition", "offset", "key", "group", "scenario", "reason", "attempts")
    return {
        "id": letter.id,
        **{name: getattr(event, name) for name in names},
        "times": letter.count,
        "first_at": letter.first.at.isoformat(),
        "last_at": event.at.isoformat(),
        "handled": settled.action if settled else None,
        "handled_at": settled.at.isoformat() if settled else None,
    }


def _body(letter: Letter) -> Any:
    try:
        return orjson.loads(letter.body)
    except ValueError:
        return letter.body.decode("utf-8", errors="backslashreplace")
