"""What the benches share: child processes, CPU time, one table a bench, JSON, progress, the command line.

A bench is a module with

    NAME, WHAT                    one word, one line
    def arguments(parser)         its own options
    async def run(options) -> Table

and ends in `if __name__ == "__main__": harness.main(sys.modules[__name__])`. `options.quick` asks for a run of a second or two that shows
that the bench works; its figures mean nothing. Figures to compare are CPU time and ratios within one run: wall time depends on who else
is on the machine.
"""

import argparse
import contextlib
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil
import uvloop

ROOT = Path(__file__).parents[2]
Row = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """What one bench found. All rows have the same keys; a key names its unit."""

    name: str
    title: str
    rows: list[Row]
    notes: list[str] = field(default_factory=list)


class Bench(Protocol):
    """A module of this folder."""

    NAME: str
    WHAT: str
    __doc__: str | None

    def arguments(self, parser: argparse.ArgumentParser) -> None: ...

    async def run(self, options: argparse.Namespace) -> Table: ...


# ------------------------------------------------------------------ showing


def tell(text: str) -> None:
    """One line of progress on standard error."""
    sys.stderr.write(f"  {time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def shown(table: Table) -> str:
    """A table as text."""
    names = list(table.rows[0]) if table.rows else []
    cells = [names, *([_cell(row[name]) for name in names] for row in table.rows)]
    widths = [max(len(line[n]) for line in cells) for n in range(len(names))]
    lines = [
        "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True))
        for line in cells
    ]
    return (
        "\n".join(
            [f"\n{table.name}: {table.title}", *lines, *(f"  {note}" for note in table.notes)]
        )
        + "\n"
    )


def _cell(value: object) -> str:
    return (
        f"{value:.3g}"
        if isinstance(value, float) and abs(value) < 100
        else f"{value:.0f}"
        if isinstance(value, float)
        else str(value)
    )


def machine() -> Row:
    """Where the figures come from."""
    return {
        "cores": psutil.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30),
        "python": platform.python_version(),
    }


# ------------------------------------------------------------------ processes and time


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def program(
    *arguments: str, port: int, env: Mapping[str, str] | None = None, root: Path = ROOT
) -> Iterator[int]:
    """A Python program of the checkout at `root` whose port answers, ended on leaving. Gives its pid. Its log goes where `REEF_BENCH_LOG` says, else nowhere."""
    with Path(os.environ.get("REEF_BENCH_LOG", os.devnull)).open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments],
            env=environment(env, root),
            cwd=root,
            stderr=log,
            stdout=log,
        )
        try:
            deadline = time.monotonic() + 60
            while True:
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(
                        f"{' '.join(arguments)} did not start (exit status {process.poll()}); set REEF_BENCH_LOG=FILE to see why"
                    )
                time.sleep(0.05)
            yield process.pid
        finally:
            process.terminate()
            process.wait(30)


def environment(more: Mapping[str, str] | None = None, root: Path = ROOT) -> dict[str, str]:
    """This process's environment, with a checkout of the repository on the path of a child."""
    path = f"{root}:{root / 'libs'}:{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **(more or {})}


def cpu_s(pid: int) -> float:
    """CPU seconds, user and system, of a process with all its threads and children. To the nanosecond, where /proc counts ticks of 10 ms."""
    try:
        tree = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    except psutil.NoSuchProcess:
        return 0.0
    total = 0.0
    for member in tree:
        with contextlib.suppress(OSError):  # a child that has ended meanwhile
            total += time.clock_gettime(
                (~member << 3) | 2
            )  # the CPU clock of a process: clock_getcpuclockid(3)
    return total


def apart(pids: Iterable[int] = (), *, rest: bool = False) -> None:
    """Give the processes the first core, or (`rest`) this one and its later children all others; nothing on a machine with one core."""
    cores = sorted(os.sched_getaffinity(os.getpid()))
    every = sorted(range(psutil.cpu_count() or 1))
    if len(every) < 2:
        return
    if rest:
        os.sched_setaffinity(0, set(every[1:]) & set(cores) or set(cores))
    for pid in pids:
        for thread in psutil.Process(pid).threads():
            os.sched_setaffinity(thread.id, {every[0]})


@contextlib.contextmanager
def whole_machine() -> Iterator[None]:
    """Undo what `apart` did to this process, on leaving."""
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def quantile(values: list[float], share: float) -> float:
    """The value that `share` of all are not above."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def middle(rows: list[Row]) -> Row:
    """Several rounds as one row: medians of the figures; what is no figure is the same in all."""
    return {
        name: round(statistics.median(row[name] for row in rows), 4)
        if isinstance(value, int | float)
        else value
        for name, value in rows[0].items()
    }


# ------------------------------------------------------------------ the command line


def parser_of(bench: Bench) -> argparse.ArgumentParser:
    """The options of one bench."""
    parser = argparse.ArgumentParser(
        prog=f"python -m tests.bench.{bench.NAME}",
        description=bench.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a second or two, to see that it works; the figures mean nothing",
    )
    parser.add_argument(
        "--json", type=Path, metavar="PATH", help="write the table as JSON to this file too"
    )
    bench.arguments(parser)
    return parser


async def measured(bench: Bench, arguments: list[str] | None = None) -> Table:
    """Run one bench with these command-line arguments."""
    options = parser_of(bench).parse_args(arguments or [])
    started = time.monotonic()
    tell(f"{bench.NAME}: {bench.WHAT}")
    with whole_machine():
        table = await bench.run(options)
    tell(f"{bench.NAME}: {time.monotonic() - started:.0f} s")
    return table


def keep(tables: list[Table], path: Path | None) -> None:
    """Print the tables; write them as JSON to `path`."""
    for table in tables:
        sys.stdout.write(shown(table))
    if path is not None:
        path.write_text(
            json.dumps(
                {"machine": machine(), "tables": [asdict(table) for table in tables]}, indent=1
            )
            + "\n"
        )
        tell(f"written to {path}")


def main(bench: Bench) -> None:
    """The command line of one bench."""
    options = parser_of(bench).parse_args()
    keep([uvloop.run(measured(bench, sys.argv[1:]))], options.json)
