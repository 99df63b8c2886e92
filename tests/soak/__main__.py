"""`python -m tests.soak --minutes 60 --rate 3`: exits with 1 where something grows, is lost, or
does not stop cleanly.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.soak.run import Outcome, Plan, Tell, soak
from tests.soak.series import series_of, verdicts
from tests.soak.verdict import Verdict


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rate", type=float, default=3.0, help="requests a second")
    parser.add_argument(
        "--every", type=float, default=15.0, metavar="S", help="seconds between two samples"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--state-dir", type=Path, help="default: a temporary directory, removed at the end"
    )
    parser.add_argument(
        "--samples", type=Path, help="append every sample to this file, one JSON object a line"
    )
    parser.add_argument(
        "--judge",
        type=Path,
        metavar="SAMPLES",
        help="run nothing: judge what a run has written, also one that still goes on",
    )
    parser.add_argument("--out", type=Path, help="write the result here, as JSON")
    return parser.parse_args()


def table(found: Sequence[Verdict], title: str) -> Table:
    """Every series with its verdict."""
    shown = Table(title=f"{title}; medians of thirds after the warm-up")
    for name in (
        "series",
        "verdict",
        "first",
        "middle",
        "last",
        "peak",
        "an hour",
        "per 1,000 requests",
        "allowed",
    ):
        shown.add_column(name, justify="left" if name in {"series", "verdict"} else "right")
    colours = {
        "GROWING": "red",
        "KEPT": "yellow",
        "CAPPED": "yellow",
        "BOUNDED": "green",
        "TOO SHORT": "dim",
    }
    for v in found:
        figures = (
            f"{x:.2f}"
            for x in (v.first, v.middle, v.last, v.peak, v.per_hour, v.per_1000, v.allowed_per_hour)
        )
        shown.add_row(v.name, f"[{colours[v.word]}]{v.word}[/]", *figures)
    return shown


async def run(plan: Plan, tell: Tell) -> Outcome:
    """The soak; SIGTERM or Ctrl-C ends the load before its time, and what was seen until then is
    judged.
    """
    enough = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, enough.set)
    return await soak(plan, tell, enough)


def main() -> int:
    """Run, show, and say by the exit code whether it has passed."""
    given = arguments()
    console = Console()
    if given.judge:
        found = verdicts(series_of(given.judge))
        console.print(table(found, str(given.judge)))
        return int(any(verdict.word == "GROWING" for verdict in found))
    with tempfile.TemporaryDirectory(prefix="reef-soak-") as scratch:
        state_dir = (given.state_dir or Path(scratch)).absolute()
        plan = Plan(given.minutes, given.rate, state_dir, given.seed, given.every, given.samples)
        bar = Progress(
            TextColumn("soak"),
            BarColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}"),
            console=console,
        )
        with bar:
            task = bar.add_task("", total=1.0)
            outcome = asyncio.run(
                run(plan, lambda share, words: bar.update(task, completed=share, description=words))
            )
    if given.out:
        given.out.write_text(json.dumps(outcome.as_json(), indent=1))
    console.print(
        table(outcome.verdicts, f"{outcome.seconds / 60:.1f} minutes, {outcome.samples} samples")
    )
    console.print({name: value for name, value in outcome.as_json().items() if name != "verdicts"})
    for problem in outcome.problems:
        console.print(f"[red]{problem}[/]")
    return 1 if outcome.problems else 0


if __name__ == "__main__":
    sys.exit(main())
