"""How long users wait while a recipe seeks on the same machine, and how long in pauses of its process.

    python -m tests.bench.seeker [--config recipes/ttt_discover/examples/row_pattern/serve.yaml] [--steps 4] [--clients 2] [--tokens 4]

The whole stack, through the gateway. Users are clients that ask again as soon as they have their answer; the seeker's questions and the
training have the whole rest of the machine. While it seeks, the trainer and the evaluator are stopped by a signal for `--pause` seconds,
and run for as many in turn, so that both figures see the same releases and the same minutes of the machine: its host may give much of it to others.

  with_s     requests that began while they ran, from its first question until it is done
  without_s  requests that began and ended while they were stopped, from the third second on: questions under way are answered by then

The second half of the table leaves out, on both sides, requests during which the host gave more than a twentieth of the CPU to others. The
host takes more from a machine that asks for more, so that this may leave out more of `with_s`, and of its tail: the parts that stay
(`without`, `with`) stand beside those of all requests, and the first half is the figure.
"""

import argparse
import asyncio
import bisect
import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil

from reefcommon.config import ServeConfig
from tests.bench import harness
from tests.bench.harness import Table, tell

NAME = "seeker"
WHAT = "users' latency while a recipe seeks and trains"
CONFIG = Path("recipes/ttt_discover/examples/row_pattern/serve.yaml")
DRAINED_S = 2.0
LOOK_S, UNDISTURBED = 0.2, 0.05


class Asked(NamedTuple):
    """Seconds of the users' requests while the seeker ran, and while it was stopped."""

    beside: list[float]
    alone: list[float]


class Measured(NamedTuple):
    """All requests, those in which the host took a twentieth at most, seconds of the search without its pauses, and the host's share."""

    all: Asked
    undisturbed: Asked
    search_s: float
    stolen: float


class Host:
    """What the host takes of the CPU, looked at again and again."""

    def __init__(self) -> None:
        self.looks: list[tuple[float, float]] = [(time.perf_counter(), stolen_s())]

    async def watch(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            self.looks.append((time.perf_counter(), stolen_s()))

    def share(self, begin: float, end: float) -> float:
        """The part of the CPU that others had, from the last look before `begin` to the first after `end`."""
        first = max(0, bisect.bisect_right(self.looks, (begin, 0.0)) - 1)
        last = min(len(self.looks) - 1, max(first + 1, bisect.bisect_left(self.looks, (end, 0.0))))
        (since, before), (until, after) = self.looks[first], self.looks[last]
        return (after - before) / max(until - since, LOOK_S / 2) / (os.cpu_count() or 1)


def arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--steps", type=int, default=4, help="steps of the search")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4, help="new tokens a user's request")
    parser.add_argument("--pause", type=float, default=10.0, help="seconds of each pause")


async def client(http: httpx.AsyncClient, tokens: int, asked: list[tuple[float, float]]) -> None:
    """Ask for ever, and note the begin and the seconds of every request."""
    body = {"model": "reef", "messages": [{"role": "user", "content": "Hi."}], "max_tokens": tokens}
    while True:
        started = time.perf_counter()
        answer = await http.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        asked.append((started, time.perf_counter() - started))


async def sought(http: httpx.AsyncClient, word: str) -> None:
    """Wait until the seeker is in this state and has asked."""
    while True:
        services = (await http.get("/reef/status")).json()["services"]
        bindings = services.get("trainer", {}).get("bindings", {})
        seeks = [row["seek"] for row in bindings.values() if row.get("seek")]
        if any(seek["state"] == word and seek["asked"] for seek in seeks):
            return
        await asyncio.sleep(0.5)


@contextlib.contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Stop processes and all that they have started, for the block."""
    parents = [psutil.Process(pid) for pid in pids]
    family = [one for parent in parents for one in (parent, *parent.children(recursive=True))]
    for process in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGCONT)


async def measure(
    http: httpx.AsyncClient, seeking: Sequence[int], options: argparse.Namespace
) -> Measured:
    """Let the users ask until the search is done, and stop it now and then."""
    await sought(http, "seeking")
    asked: list[tuple[float, float]] = []
    done = asyncio.create_task(sought(http, "done"))
    users = [
        asyncio.create_task(client(http, options.tokens, asked)) for _ in range(options.clients)
    ]
    host = Host()
    users.append(asyncio.create_task(host.watch()))
    began, pauses = time.perf_counter(), []
    while not done.done():
        await asyncio.wait(
            [done, *users], timeout=options.pause, return_when=asyncio.FIRST_COMPLETED
        )
        if done.done() or any(user.done() for user in users):
            break
        with stopped(seeking):
            at = time.perf_counter()
            await asyncio.sleep(options.pause)
            pauses.append((at, time.perf_counter()))
    ended = time.perf_counter()
    for user in users:
        user.cancel()
    for failure in await asyncio.gather(done, *users, return_exceptions=True):
        if isinstance(failure, Exception):
            raise failure

    def paused(at: float) -> bool:
        return any(begin <= at < end for begin, end in pauses)

    def drained(at: float, until: float) -> bool:
        wait = min(DRAINED_S, options.pause / 2)
        return any(begin + wait <= at and until <= end for begin, end in pauses)

    def sides(requests: Sequence[tuple[float, float]]) -> Asked:
        return Asked(
            [wait for at, wait in requests if not paused(at)],
            [wait for at, wait in requests if drained(at, at + wait)],
        )

    calm = [(at, wait) for at, wait in asked if host.share(at, at + wait) <= UNDISTURBED]
    search_s = ended - began - sum(end - begin for begin, end in pauses)
    return Measured(sides(asked), sides(calm), search_s, host.share(began, ended))


def stolen_s() -> float:
    """Seconds of this machine's CPU that its host gave to others."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


async def run(options: argparse.Namespace) -> Table:
    """Start the stack, measure, and compare the quantiles."""
    from reefcli.demo.variant import variant
    from reefcommon import config
    from reefcommon.demonstration import Arm
    from reefstack.embedded import Options, embedded_stack

    if options.quick:
        options.steps, options.pause = 1, 1.0
    told: ServeConfig = variant(
        config.load(options.config), Arm("bench", knobs={"steps": options.steps}), {}, {}
    )
    # A stopped trainer stays a member of its consumer groups.
    given = Options(default_ports=False, env={"REEF_KAFKA_SESSION_TIMEOUT_MS": "60000"})
    with tempfile.TemporaryDirectory() as state:
        async with (
            embedded_stack(told, Path(state), given) as stack,
            httpx.AsyncClient(base_url=stack.urls["gateway"], timeout=120) as http,
        ):
            children = stack.supervisor.children
            seeking = [children[name].record.pid for name in ("trainer", "evaluator")]
            found = await measure(http, seeking, options)
    tell(f"the search took {found.search_s:.1f} s beside users")
    rows = []
    for hours, waits in (("all", found.all), ("undisturbed", found.undisturbed)):
        if not (waits.alone and waits.beside):
            continue  # none is left
        for share in (0.5, 0.9, 0.99):
            without, with_ = (harness.quantile(side, share) for side in (waits.alone, waits.beside))
            rows.append(
                {
                    "requests": hours,
                    "quantile": f"p{share * 100:.0f}",
                    "without": len(waits.alone),
                    "with": len(waits.beside),
                    "without_s": without,
                    "with_s": with_,
                    "ratio": with_ / without,
                }
            )
    about = (
        f"{options.steps} steps in {found.search_s:.1f} s; the host gave {found.stolen:.1%} of the"
        " CPU to others"
    )
    title = f"seconds of a user's request of {options.tokens} tokens, {options.clients} clients"
    return Table(NAME, title, rows, [about])


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
