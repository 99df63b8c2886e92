"""`reef replay`: read the log again into an empty store, and see that it comes to the same."""

import asyncio
import gc
import logging
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Self

import structlog
import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from reefcli.errors import CommandFailed
from reefcli.options import DEFAULT_STATE_DIR, AsJson, StateDir, program
from reefcli.output import console, print_json, print_table
from reefcommon.ids import digest
from reefstack.state import StackState
from reefstack.state import running as running_stack

if TYPE_CHECKING:
    from reefcli.replay.run import Plan, Say, Verdict

DIFFERENT = 3
# What chDB makes at the top of a store.
STORE_PARTS = {
    "data",
    "flags",
    "metadata",
    "metadata_dropped",
    "preprocessed_configs",
    "status",
    "store",
    "tmp",
    "user_files",
    "uuid",
}
_SYSTEMS = "Where the running Reef is (default: the one that runs on --state-dir)"


def replay(
    into: Annotated[
        str | None,
        typer.Option(
            help="Build the store that is to take a lost one's place: a directory (chDB), or http://user:password@host:8123/db."
        ),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the second store after the comparison.")
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Begin anew, whatever an earlier replay has done.")
    ] = False,
    shown: Annotated[int, typer.Option(help="How many differences are told in full.", min=0)] = 20,
    bootstrap: Annotated[
        str | None,
        typer.Option(envvar="REEF_KAFKA_BOOTSTRAP", help="host:port", rich_help_panel=_SYSTEMS),
    ] = None,
    redis: Annotated[
        str | None,
        typer.Option(envvar="REEF_REDIS_URL", help="redis://host:port/0", rich_help_panel=_SYSTEMS),
    ] = None,
    experience: Annotated[
        str | None,
        typer.Option(
            envvar="REEF_EXPERIENCE_URL", help="http://host:8911", rich_help_panel=_SYSTEMS
        ),
    ] = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """Read the whole log again into an empty store, beside the running system, and compare rows, sessions, samples, heads.

    Equal: exit code 0. Different: exit code 3, and what differs, by table, id and field. Nothing is sent to anybody, and nothing of the
    running system is changed. Ctrl-C or a kill costs nothing: the same command goes on where it was.

    With --into the new store stays, to take the place of one that was lost; nothing is compared then, and the log is read as far as the
    experience service had handled it, so that it goes on from there:

      1. stop Reef, or the experience service;  2. reef replay --into DIRECTORY;  3. start it again.

    Where the broker is the embedded one and is stopped, it is started for as long as that takes.

    Examples:

      reef replay

      reef replay --json | jq .differences

      reef replay --keep --state-dir /data/reef

      reef replay --into .reef/chdb

      reef replay --into http://user:password@clickhouse:8123/reef --bootstrap broker:9092
    """
    # Production's code logs as a service does; here a person reads, and what matters is in the verdict.
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        logger_factory=lambda *_: structlog.PrintLogger(
            sys.stderr
        ),  # what it is when something is said
        cache_logger_on_first_use=False,
    )
    gc.set_threshold(
        100_000, 20, 20
    )  # as the service does: a batch is many small objects without cycles
    plan = _plan(
        running_stack(state_dir),
        state_dir,
        into,
        {"kafka": bootstrap, "redis": redis, "experience": experience},
        keep=keep,
        fresh=fresh,
        shown=shown,
    )
    try:
        with _Bar(shown=not as_json) as bar:
            verdict = asyncio.run(_carry_out(plan, state_dir, bar.say))
    except KeyboardInterrupt:
        typer.echo("reef: stopped; the same command goes on from here", err=True)
        raise typer.Exit(130) from None
    if as_json:
        print_json(verdict.as_json())
    else:
        _tell(verdict, kept=plan.keep)
    if verdict.compared and not verdict.equal:
        raise typer.Exit(DIFFERENT)


async def _carry_out(plan: "Plan", state_dir: Path, say: "Say") -> "Verdict":
    from reefcli.replay.run import replay as carry_out

    if plan.bootstrap:
        return await carry_out(plan, say)
    from reefcommon.config import load
    from reefstack.embedded import Options, embedded_stack

    say("starting the broker", 0, 0)
    async with embedded_stack(
        load(state_dir / "serve.yaml"),
        state_dir,
        Options(only=frozenset({"kafka"}), housekeeping_every_s=0),
    ) as stack:
        return await carry_out(replace(plan, bootstrap=stack.kafka_bootstrap), say)


def _plan(
    stack: StackState | None,
    state_dir: Path,
    into: str | None,
    named: dict[str, str | None],
    *,
    keep: bool,
    fresh: bool,
    shown: int,
) -> "Plan":
    from reefcli.replay.run import Plan

    urls = {
        name: given or (stack.urls.get(name, "") if stack else "") for name, given in named.items()
    }
    kept_here = (
        stack is None and (state_dir / "serve.yaml").exists()
    )  # the embedded broker's log, and what to start it with
    needed = () if into and kept_here else ("kafka",) if into else ("kafka", "redis", "experience")
    options = {"kafka": "--bootstrap", "redis": "--redis", "experience": "--experience"}
    if missing := [options[name] for name in needed if not urls[name]]:
        raise CommandFailed(
            f"no stack runs on {state_dir}: start one ({program()} serve -c serve.yaml), or name {', '.join(missing)}"
        )
    home = state_dir.absolute()
    place = into or str(home / "replay" / "chdb")
    embedded = not named["kafka"] and (stack is None or "tansu" in stack.processes)
    if "://" not in place:
        place = str(Path(place).resolve())
        if (
            into
            and stack is not None
            and "experience" in stack.processes
            and place == str((home / "chdb").resolve())
        ):
            raise CommandFailed(
                f"{place} is the store of the Reef that runs on {state_dir}; stop it first"
            )
    checkpoint = home / "replay" / f"{digest(place, length=12)}.json"
    if into and "://" not in place:
        check_place(Path(place), begun=checkpoint.exists())
    return Plan(
        log_id=f"the log of {home.resolve()}"
        if embedded
        else urls["kafka"],  # the embedded broker has another port at each start
        bootstrap=urls["kafka"],
        redis_url=urls["redis"],
        experience_url=urls["experience"],
        bodies=home / "bodies",
        into=place,
        checkpoint=checkpoint,
        keep=keep or into is not None,
        fresh=fresh,
        restore=into is not None,
        shown=shown,
    )


def check_place(place: Path, *, begun: bool) -> None:
    """See that nothing but a store is written over, or removed by --fresh. `begun`: by a replay that may have been killed at any moment.

    Raises:
        CommandFailed: something else lies there.
    """
    names = (
        {path.name for path in place.iterdir()}
        if place.is_dir()
        else {place.name}
        if place.exists()
        else set()
    )
    if names and not (names <= STORE_PARTS and (begun or {"metadata", "store"} <= names)):
        raise CommandFailed(
            f"{place} holds other things than a store; name an empty or a new directory"
        )


class _Bar:
    """Progress on a terminal's standard error; silence in a pipe."""

    def __init__(self, *, shown: bool) -> None:
        err = console(err=True)
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=err,
            transient=True,
            disable=not (shown and err.is_terminal and os.environ.get("TERM") != "dumb"),
        )
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._progress.start()
        self._task = self._progress.add_task("connecting", total=None, rate="")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def say(self, what: str, done: int, total: int) -> None:
        """Show how far it is."""
        assert self._task is not None
        speed = self._progress.tasks[0].speed
        rate = f"{speed:,.0f} events/s" if speed and total else ""
        self._progress.update(
            self._task, description=what, completed=done, total=total or None, rate=rate
        )


def _tell(verdict: "Verdict", *, kept: bool) -> None:
    figures = verdict.as_json()
    out = console()
    resumed = f" (went on from event {verdict.resumed_at:,})" if verdict.resumed_at else ""
    out.print(
        f"{verdict.events:,} events read in {verdict.seconds:.1f} s, {figures['events_per_s']:,} a second{resumed}"
    )
    if verdict.rows:
        print_table(("table", "rows", "differ"), [*_rows(verdict)])
    for difference in verdict.differences:
        _tell_difference(difference)
    for table, count in verdict.older_than_the_log.items():
        out.print(
            f"{table}: {count} rows are older than what the log still has; they were not compared"
        )
    for table, count in verdict.past_their_time.items():
        out.print(
            f"{table}: {count} rows are older than the running store keeps them; they were not compared"
        )
    if dead := sum(verdict.dead_letters.values()):
        out.print(f"{dead} events could not be handled, as the first time; see `reef dlq list`")
    for table, columns in verdict.ignored.items() if verdict.compared else ():
        out.print(
            f"not compared: {', '.join(f'{table}.{name} ({why})' for name, why in columns.items())}",
            style="dim",
        )
    if kept:
        out.print(f"the new store is kept: {verdict.into}", soft_wrap=True)
    if not verdict.compared:
        out.print(
            "Rebuilt up to where the experience service had got. Start it on this store; it goes on from there.",
            style="bold",
        )
    else:
        different = ", ".join(
            f"{table} {sum(counts.values())}" for table, counts in verdict.different.items()
        )
        out.print(
            "Equal." if verdict.equal else f"Different: {different}",
            style="bold green" if verdict.equal else "bold red",
        )


def _rows(verdict: "Verdict") -> list[tuple[str, int, int]]:
    found = [
        (table, count, sum(verdict.different.get(table, {}).values()))
        for table, count in verdict.rows.items()
    ]
    return [
        *found,
        ("release heads", verdict.releases, sum(verdict.different.get("heads", {}).values())),
    ]


def _tell_difference(difference: dict[str, Any]) -> None:
    words = {
        "missing": "is in the log and not in the running store",
        "extra": "is in the running store and not in the log",
        "differs": "differs",
    }
    typer.echo(f"{difference['table']} {difference['id']}: {words[difference['kind']]}")
    for name, sides in difference["fields"].items():
        typer.echo(
            f"  {name}: running {str(sides['running'])[:120]}, from the log {str(sides['replayed'])[:120]}"
        )
