"""How long users wait while a recipe seeks on the same machine, beside how long they wait before and afterwards.

    python -m tests.bench.seeker [--config recipes/ttt_discover/examples/row_pattern/serve.yaml] [--steps 8] [--clients 2] [--tokens 4]

The whole stack, through the gateway. Users are clients that ask again as soon as they have their answer; the seeker's questions and the
training have the whole rest of the machine.

  before_s, after_s  users alone, for `--seconds` each: before the trainer is started, and once the search is done
  with_s             from the first question of the seeker until it is done
  ratio              of with_s to the mean of both: a machine that gets slower by the minute does not look like a seeker
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Awaitable
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
Wait = Awaitable[object]


class Measured(NamedTuple):
    """Seconds of every request of the users; the share of the CPU that other machines took, in each part."""

    before: list[float]
    beside: list[float]
    after: list[float]
    search_s: float
    stolen: list[float]


def arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--config", type=Path, default=CONFIG)
    parser.add_argument("--steps", type=int, default=8, help="steps of the search")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4, help="new tokens a user's request")
    parser.add_argument("--seconds", type=float, default=40.0, help="users alone")


async def client(http: httpx.AsyncClient, tokens: int, until: asyncio.Event) -> list[float]:
    """Seconds of every request of a user until the event."""
    waits = []
    body = {"model": "reef", "messages": [{"role": "user", "content": "Hi."}], "max_tokens": tokens}
    while not until.is_set():
        started = time.perf_counter()
        answer = await http.post("/v1/chat/completions", json=body)
        answer.raise_for_status()
        waits.append(time.perf_counter() - started)
    return waits


async def sought(http: httpx.AsyncClient, word: str) -> None:
    """Wait until the seeker is in this state and has asked."""
    while True:
        services = (await http.get("/reef/status")).json()["services"]
        bindings = services.get("trainer", {}).get("bindings", {})
        seeks = [row["seek"] for row in bindings.values() if row.get("seek")]
        if any(seek["state"] == word and seek["asked"] for seek in seeks):
            return
        await asyncio.sleep(0.5)


def stolen_s() -> float:
    """Seconds of this machine's CPU that its host gave to others."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


async def users(http: httpx.AsyncClient, options: argparse.Namespace, end: Wait) -> list[float]:
    """Waits of all users until `end` is over."""
    ended = asyncio.Event()
    clients = [
        asyncio.create_task(client(http, options.tokens, ended)) for _ in range(options.clients)
    ]
    await end
    ended.set()
    return [wait for waits in await asyncio.gather(*clients) for wait in waits]


async def measure(options: argparse.Namespace, told: ServeConfig, state: Path) -> Measured:
    """Start the stack without its trainer, then whole; measure before, beside and after the search."""
    from reefstack.embedded import Options, embedded_stack
    from reefstack.plan import ROLES

    found, stolen = [], []

    async def during(http: httpx.AsyncClient, end: Wait) -> None:
        began, before = time.perf_counter(), stolen_s()
        found.append(await users(http, options, end))
        share = (stolen_s() - before) / (time.perf_counter() - began) / (os.cpu_count() or 1)
        stolen.append(share)

    for roles in (frozenset(ROLES) - {"trainer"}, None):
        async with (
            embedded_stack(told, state, Options(only=roles, default_ports=False)) as stack,
            httpx.AsyncClient(base_url=stack.urls["gateway"], timeout=120) as http,
        ):
            if roles is None:
                await sought(http, "seeking")
                began = time.perf_counter()
                await during(http, sought(http, "done"))
                search_s = time.perf_counter() - began
                tell(f"the search took {search_s:.1f} s beside users")
            await during(http, asyncio.sleep(options.seconds))
    before, beside, after = found
    return Measured(before, beside, after, search_s, stolen)


async def run(options: argparse.Namespace) -> Table:
    """Measure, and compare the quantiles."""
    from reefcli.demo.variant import variant
    from reefcommon import config
    from reefcommon.demonstration import Arm

    if options.quick:
        options.steps, options.seconds = 1, 1.0
    told = variant(
        config.load(options.config), Arm("bench", knobs={"steps": options.steps}), {}, {}
    )
    with tempfile.TemporaryDirectory() as state:
        found = await measure(options, told, Path(state))
    rows = []
    for share in (0.5, 0.9, 0.99):
        before, beside, after = (
            harness.quantile(waits, share) for waits in (found.before, found.beside, found.after)
        )
        ratio = 2 * beside / (before + after)
        rows.append(
            {
                "quantile": f"p{share * 100:.0f}",
                "before_s": before,
                "with_s": beside,
                "after_s": after,
                "ratio": ratio,
            }
        )
    about = (
        f"{len(found.before)} requests before, {len(found.beside)} with, {len(found.after)} after;"
        f" {options.steps} steps in {found.search_s:.1f} s"
    )
    shares = ", ".join(f"{share:.1%}" for share in found.stolen)
    taken = f"the host of this machine gave {shares} of its CPU to others, in the three parts"
    title = f"seconds of a user's request of {options.tokens} tokens, {options.clients} clients"
    return Table(NAME, title, rows, [about, taken])


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
