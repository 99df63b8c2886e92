"""The results of the runs of a demonstration: a file for machines, a table for people."""

import json
import shlex
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.table import Table

from reefcli.demo.attempt import Attempt
from reefcli.demo.figures import interval_text

FILE = "results.json"
_COLUMNS = ("arm", "seed", "first", "last", "steps", "releases", "failed", "s", "ended by")


def row(attempt: Attempt) -> dict[str, Any]:
    """Return the result of a run. Intervals are of 95 %."""
    run, found = attempt.run, attempt.summary
    return {
        "arm": run.arm.name,
        "knobs": dict(run.arm.knobs),
        "seed": run.seed,
        "first": found["heldout_first"],
        "first_interval": found["heldout_first_interval"],
        # Measured after the run, by answers that decided nothing.
        "last": found["heldout_last"],
        "last_interval": found["heldout_last_interval"],
        "answers": found["heldout_answers"],
        "reached": found["reached"],
        "stopped_by": found["stopped_by"],
        "steps": found["steps"],
        "releases": found["releases_published"],
        "requests": found["requests"],
        "requests_failed": found["failed_requests"],
        "signals": found["signals"],
        "seconds": found["elapsed_s"],
        "failure": attempt.failure,
    }


def summary(attempts: Sequence[Attempt]) -> dict[str, Any]:
    shown = attempts[0].run.demonstration
    return {
        "recipe": shown.recipe,
        "model": shown.model,
        "about": shown.about,
        "figure": shown.figure,
        "measured": shown.signal,
        "goal": {"releases": shown.releases_goal, "lower_bound_above": shown.goal},
        "limit_s": 60 * shown.minutes,
        "command": shlex.join(sys.argv),
        "version": version("reef-agent"),
        "runs": [row(attempt) for attempt in attempts],
        "cut_short": cut_short(attempts),
    }


def cut_short(attempts: Sequence[Attempt]) -> list[str]:
    """Return the runs of a seeker that did not end by themselves: they made fewer calls."""
    runs = [attempt.run for attempt in attempts if attempt.run.demonstration.seeks]
    return [f"{run.arm.name}-{run.seed}" for run in runs if run.stopped != "done"]


def keep(directory: Path, found: dict[str, Any]) -> Path:
    """Write the results file, whole or not at all."""
    directory.mkdir(parents=True, exist_ok=True)
    path, part = directory / FILE, directory / f"{FILE}.part"
    part.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    return part.replace(path)


def table(found: dict[str, Any]) -> Table:
    shown = Table(
        title=f"{found['recipe']} on {found['model']}: {found['figure']}", show_edge=False
    )
    if found["cut_short"]:
        names = ", ".join(found["cut_short"])
        shown.caption = f"with fewer calls than the others, not to be compared: {names}"
    for number, name in enumerate(_COLUMNS):
        shown.add_column(name, justify="left" if number < 1 else "right", no_wrap=True)
    for run in found["runs"]:
        shown.add_row(
            run["arm"],
            str(run["seed"]),
            _figure(run["first"], run["first_interval"]),
            run["failure"].partition("\n")[0][:40] or _figure(run["last"], run["last_interval"]),
            *(str(run[name]) for name in ("steps", "releases", "requests_failed")),
            f"{run['seconds']:.0f}",
            run["stopped_by"],
        )
    return shown


def _figure(mean: float | None, interval: Sequence[float] | None) -> str:
    return "-" if mean is None or interval is None else interval_text(mean, interval)
