"""`reef replay`: read the log again into an empty store, and compare it with the running one."""

import asyncio
import contextlib
import gc
import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer

from reefcli.errors import CommandFailed
from reefcli.options import DEFAULT_STATE_DIR, AsJson, StateDir, no_stack_words
from reefcli.output import console, print_json, print_table
from reefcommon.ids import digest
from reefcommon.settings import SystemSettings
from reefstack.state import StackState, running

if TYPE_CHECKING:
    from reefcli.replay.run import Plan, Say, Verdict

DIFFERENT = 3
# The directories that chDB makes at the top of a store.
_PARTS = (
    "data flags metadata metadata_dropped preprocessed_configs status store tmp user_files uuid"
)
STORE_PARTS = frozenset(_PARTS.split())
_SYSTEMS = "Where the running Reef is (default: the one that runs on --state-dir)"
_KINDS = {
    "missing": "is in the log and not in the running store",
    "extra": "is in the running store and not in the log",
    "differs": "differs",
}


def _system(variable: str, form: str) -> Any:
    return typer.Option(envvar=variable, help=form, rich_help_panel=_SYSTEMS)


_PLACE = "a directory (chDB), or http://user:password@host:8123/db."
_INTO = f"Build the store that is to replace a lost one: {_PLACE}"
_Into = Annotated[str | None, typer.Option(help=_INTO)]
_Keep = Annotated[bool, typer.Option("--keep", help="Keep the second store after the comparison.")]
_Fresh = Annotated[
    bool, typer.Option("--fresh", help="Begin anew, whatever an earlier replay has done.")
]
_Shown = Annotated[int, typer.Option(help="How many differences are told in full.", min=0)]


def replay(
    into: _Into = None,
    keep: _Keep = False,
    fresh: _Fresh = False,
    shown: _Shown = 20,
    bootstrap: Annotated[str | None, _system("REEF_KAFKA_BOOTSTRAP", "host:port")] = None,
    redis: Annotated[str | None, _system("REEF_REDIS_URL", "redis://host:port/0")] = None,
    experience: Annotated[str | None, _system("REEF_EXPERIENCE_URL", "http://host:8911")] = None,
    state_dir: StateDir = DEFAULT_STATE_DIR,
    as_json: AsJson = False,
) -> None:
    """Read the whole log again into an empty store, and compare it with the running system.

    Exit code 0: equal. Exit code 3: different, with each difference by table, id and field. After
    Ctrl-C or a kill the same command goes on from there.

    With --into the new store stays, to replace a lost store: stop the experience service, run
    `reef replay --into DIRECTORY`, start it again. The log is read as far as the service had
    handled it. An embedded broker that is stopped is started meanwhile.

    Examples:

      reef replay

      reef replay --json | jq .differences

      reef replay --keep --state-dir /data/reef

      reef replay --into .reef/chdb

      reef replay --into http://user:password@clickhouse:8123/reef --bootstrap broker:9092
    """
    # The services' code logs as a service does; here a person reads the verdict.
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        # Looked up at each line: a test may have replaced sys.stderr since.
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
        cache_logger_on_first_use=False,
    )
    # As the service does: a batch is many small objects without cycles.
    gc.set_threshold(100_000, 20, 20)
    urls = {"kafka": bootstrap, "redis": redis, "experience": experience}
    plan = _plan(running(state_dir), state_dir, into, urls)
    plan = replace(plan, keep=keep or into is not None, fresh=fresh, shown=shown)
    try:
        with _progress(shown=not as_json) as say:
            verdict = asyncio.run(_carry_out(plan, state_dir, say))
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
    config = load(state_dir / "serve.yaml")
    options = Options(only=frozenset({"kafka"}), housekeeping_every_s=0)
    async with embedded_stack(config, state_dir, options) as stack:
        return await carry_out(replace(plan, bootstrap=stack.kafka_bootstrap), say)


def _plan(
    stack: StackState | None, state_dir: Path, into: str | None, named: dict[str, str | None]
) -> "Plan":
    from reefcli.replay.rebuild import Checkpoint
    from reefcli.replay.run import Plan

    known = stack.urls if stack else {}
    urls = {name: given or known.get(name, "") for name, given in named.items()}
    # The embedded broker's log is here, and the file to start it with.
    log_is_here = stack is None and (state_dir / "serve.yaml").exists()
    needed = ("kafka", "redis", "experience") if not into else () if log_is_here else ("kafka",)
    options = {"kafka": "--bootstrap", "redis": "--redis", "experience": "--experience"}
    if missing := [options[name] for name in needed if not urls[name]]:
        raise CommandFailed(no_stack_words(state_dir, f"name {', '.join(missing)}"))
    home = state_dir.absolute()
    place = _whole(into or str(home / "replay" / "chdb"))
    embedded = not named["kafka"] and (stack is None or "tansu" in stack.processes)
    checkpoint = home / "replay" / f"{digest(place, length=12)}.json"
    if into and "://" not in place:
        if place == _whole(str(home / "chdb")) and stack and "experience" in stack.processes:
            fault = f"{place} is the store of the Reef that runs on {state_dir}"
            raise CommandFailed(f"{fault}; stop it first")
        check_place(Path(place), begun=checkpoint.exists())
    # The embedded broker has another port at each start, so its log is named by its place.
    log_id = f"the log of {home.resolve()}" if embedded else urls["kafka"]
    return Plan(
        bootstrap=urls["kafka"],
        redis_url=urls["redis"],
        experience_url=urls["experience"],
        bodies=home / "bodies",
        into=place,
        checkpoint=Checkpoint(checkpoint, log_id),
        restore=into is not None,
        config=_config_of(state_dir),
    )


def _config_of(state_dir: Path) -> Path | None:
    """Return the `serve.yaml` of the deployment: its recipes say which units a restore makes."""
    kept = state_dir / "serve.yaml"
    return SystemSettings.load().config or (kept if kept.exists() else None)


def _whole(place: str) -> str:
    return place if "://" in place else str(Path(place).resolve())


def check_place(place: Path, *, begun: bool) -> None:
    """Check that only a store is written over or removed. `begun`: by an unfinished replay.

    Raises:
        CommandFailed: the place holds other things.
    """
    names = {path.name for path in place.glob("*")}
    ours = names <= STORE_PARTS and (begun or {"metadata", "store"} <= names)
    if place.is_file() or (names and not ours):
        fault = f"{place} holds other things than a store"
        raise CommandFailed(f"{fault}; name an empty or a new directory")


@contextlib.contextmanager
def _progress(*, shown: bool) -> "Iterator[Say]":
    err, began = console(err=True), time.monotonic()
    if not shown or not err.is_terminal or os.environ.get("TERM") == "dumb":
        yield lambda _what, _done, _total: None
        return
    with err.status("connecting") as status:

        def say(what: str, done: int, total: int) -> None:
            rate = f", {done / (time.monotonic() - began):,.0f} a second" if total else ""
            status.update(f"{what}: {done:,} of {total:,}{rate}" if total else what)

        yield say


def _tell(verdict: "Verdict", *, kept: bool) -> None:
    out, rate = console(), verdict.as_json()["events_per_s"]
    resumed = f" (went on from event {verdict.resumed_at:,})" if verdict.resumed_at else ""
    took = f"{verdict.seconds:.1f} s, {rate:,} a second{resumed}"
    out.print(f"{verdict.events:,} events read in {took}")
    counts = {table: sum(found.values()) for table, found in verdict.different.items()}
    if verdict.rows:
        rows = [(table, count, counts.get(table, 0)) for table, count in verdict.rows.items()]
        heads = ("release heads", verdict.releases, counts.get("heads", 0))
        print_table(("table", "rows", "differ"), [*rows, heads])
    for difference in verdict.differences:
        _tell_difference(difference)
    for why, found in (
        ("than what the log still has", verdict.older_than_the_log),
        ("than the running store keeps them", verdict.past_their_time),
    ):
        for table, count in found.items():
            out.print(f"{table}: {count} rows are older {why}; they were not compared")
    if dead := sum(verdict.dead_letters.values()):
        out.print(f"{dead} events could not be handled, as the first time; see `reef dlq list`")
    for table, columns in verdict.ignored.items() if verdict.compared else ():
        names = ", ".join(f"{table}.{name} ({why})" for name, why in columns.items())
        out.print(f"not compared: {names}", style="dim")
    if kept:
        out.print(f"the new store is kept: {verdict.into}", soft_wrap=True)
    different = ", ".join(f"{table} {count}" for table, count in counts.items())
    outcome, color = ("Equal.", "green") if verdict.equal else (f"Different: {different}", "red")
    if verdict.compared:
        out.print(outcome, style=f"bold {color}")
    else:
        out.print("Rebuilt as far as the experience service had handled the log.", style="bold")
        out.print("Start it on this store; it goes on from there.", style="bold")


def _tell_difference(difference: dict[str, Any]) -> None:
    typer.echo(f"{difference['table']} {difference['id']}: {_KINDS[difference['kind']]}")
    for name, sides in difference["fields"].items():
        here, replayed = (str(sides[side])[:120] for side in ("running", "replayed"))
        typer.echo(f"  {name}: running {here}, from the log {replayed}")
