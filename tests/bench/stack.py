"""CPU of the whole embedded stack an exchange, at rest, and the time of a start, on either object store.

    python -m tests.bench.stack [--stores objectstore seaweedfs] [--clients 1 8] [--seconds 20] [--idle 60]

The serving node is replaced by one that answers at once; everything else is what `reef serve` starts. Each exchange is in the log,
synced to the disk by the store `objectstore`, before its client has the answer. `bare` is the pass-through of `tests.bench.peers`, in the
same run: the figure says how fast this machine is.

  p50_ms, p99_ms   latency as the client sees it        cpu_ms   user and system time of all processes an exchange
  merge_ms         CPU of the merges that follow later, an exchange of all rows
  idle             % of a core, after the merges        start_s  from nothing to ready, and again on the same directory
                                                        (restart_s); start_cpu_s: CPU of the first
"""

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench import harness, traffic
from tests.bench.harness import Row, Table, cpu_s, free_port, program, tell

NAME = "stack"
WHAT = "CPU of all processes an exchange, idle share, start-up"
CONFIG = """
reef:
  recipe: recipes.sao.recipe:SAORecipe
model: tiny
serving:
  engines: ["http://127.0.0.1:{node}"]
"""
SETTLED_S = 8.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    parser.add_argument("--stores", nargs="+", default=["objectstore", "seaweedfs"])
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--seconds", type=float, default=20.0, help="of traffic at each number")
    parser.add_argument("--idle", type=float, default=60.0, help="seconds at rest")


@dataclass
class Whole:
    """A running stack: where it is asked, and its processes by name."""

    port: int
    pids: dict[str, int]
    start_s: float
    serve: int = 0
    """The process of the supervisor and the merger; its children are counted by themselves."""

    def cpu(self) -> Counter[str]:
        """CPU seconds of each program so far."""
        used = Counter({name: cpu_s(pid) for name, pid in self.pids.items()})
        return used + Counter(serve=time.process_time()) if self.serve else used


@contextlib.asynccontextmanager
async def whole_stack(state: Path, node: int, store: Any) -> AsyncIterator[Whole]:
    """Everything but the serving node, on this object store."""
    from reefcommon.config import parse
    from reefstack.embedded import Options, embedded_stack
    from reefstack.settings import Settings

    began = time.monotonic()
    settings = Settings.load()
    options = Options(
        default_ports=False,
        store=store,
        policy=settings.policy,
        housekeeping_every_s=settings.housekeeping_every_s,
        merge_limits=settings.limits,
    )
    async with embedded_stack(parse(CONFIG.format(node=node)), state, options) as stack:
        start_s = time.monotonic() - began
        pids = {name: child.record.pid for name, child in stack.supervisor.children.items()}
        yield Whole(int(stack.urls["gateway"].rpartition(":")[2]), pids, start_s, os.getpid())


async def ask_for(port: int, clients: int, seconds: float) -> tuple[list[float], float]:
    """Exchanges of so many clients for so long, from a process of their own: latencies, and the time they took."""
    code = "from tests.bench.stack import load; load()"
    words = ("-c", code, str(port), str(clients), str(seconds))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *words, env=harness.environment(), cwd=harness.ROOT, stdout=PIPE
    )
    out, _ = await process.communicate()
    latencies, taken = json.loads(out)
    return latencies, taken


def load() -> None:
    """The process of the clients: port, how many, seconds. Prints the latencies and the time."""
    port, clients, seconds = sys.argv[1:]
    found = asyncio.run(exchanges(int(port), int(clients), float(seconds)))
    sys.stdout.write(json.dumps(found))


async def exchanges(port: int, clients: int, seconds: float) -> tuple[list[float], float]:
    """Ask for so long."""
    requests = traffic.Traffic("unary").requests(100)
    latencies: list[float] = []
    began = time.monotonic()
    end = began + seconds

    async def one(first: int) -> None:
        while time.monotonic() < end:
            await traffic.client(port, requests[first::clients], latencies)

    await asyncio.gather(*(one(n) for n in range(clients)))
    return latencies, time.monotonic() - began


async def measured(whole: Whole, clients: int, seconds: float) -> Row:
    """One row, with the CPU of each program. What is left to do after the last answer is part of it."""
    before = whole.cpu()
    latencies, taken = await ask_for(whole.port, clients, seconds)
    await asyncio.sleep(SETTLED_S if seconds > 5 else 1)
    used = whole.cpu() - before
    parts = {name: 1000 * cpu / len(latencies) for name, cpu in used.items()}
    return {
        "exchanges": len(latencies),
        "per_s": len(latencies) / taken,
        "p50_ms": harness.quantile(latencies, 0.5) * 1000,
        "p99_ms": harness.quantile(latencies, 0.99) * 1000,
        "cpu_ms": sum(parts.values()),
        "parts": shown(parts),
    }


def shown(parts: dict[str, float]) -> str:
    """The largest first."""
    return " ".join(f"{name} {value:.2f}" for name, value in Counter(parts).most_common())


async def of_store(store: str, node: int, options: argparse.Namespace) -> list[Row]:
    """All rows of one store."""
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        async with whole_stack(Path(directory), node, store) as whole:
            start_s, start_cpu_s = whole.start_s, sum(whole.cpu().values())
            tell(f"{store}: started in {start_s:.1f} s, {start_cpu_s:.1f} s of CPU")
            await ask_for(whole.port, 4, min(options.seconds, 3))  # warm
            for clients in options.clients:
                row = await measured(whole, clients, options.seconds)
                rows.append({"store": store, "clients": str(clients), **row})
                tell(f"{store} x{clients}: {row['cpu_ms']:.1f} ms CPU, p50 {row['p50_ms']:.1f} ms")
            later_s, waited_s = await merged(whole, options.idle)
            before = whole.cpu()
            await asyncio.sleep(options.idle)
            used = whole.cpu() - before
        later_s -= sum(used.values()) * waited_s / options.idle
        merge_ms = 1000 * later_s / sum(row["exchanges"] for row in rows)
        idle = {name: 100 * cpu / options.idle for name, cpu in used.items()}
        tell(f"{store} idle: {sum(idle.values()):.1f} % of a core: {shown(idle)}")
        async with whole_stack(Path(directory), node, store) as again:
            restart_s = again.start_s
    common = {
        "merge_ms": merge_ms,
        "idle": sum(idle.values()),
        "start_s": start_s,
        "start_cpu_s": start_cpu_s,
        "restart_s": restart_s,
    }
    return [{**row, **common, "idle_parts": shown(idle)} for row in rows]


async def merged(whole: Whole, most_s: float) -> tuple[float, float]:
    """Wait until the merger, in `serve`, has nothing left to do. CPU seconds of all meanwhile, and the time."""
    from reefstack.settings import Settings

    began, before = time.monotonic(), whole.cpu()
    quiet_s, window_s = 0.0, min(most_s, SETTLED_S)
    while quiet_s <= min(most_s, Settings.load().housekeeping_every_s):
        last = whole.cpu()
        await asyncio.sleep(window_s)
        busy = (whole.cpu() - last)["serve"] > 0.02 * window_s
        quiet_s = 0.0 if busy else quiet_s + window_s
    return sum((whole.cpu() - before).values()), time.monotonic() - began


async def of_bare(node: int, options: argparse.Namespace) -> list[Row]:
    """The pass-through."""
    port = free_port()
    argv = ("-m", "tests.bench.peers", "bare", str(port), f"http://127.0.0.1:{node}")
    with program(*argv, port=port) as pid:
        whole = Whole(port, {"bare": pid}, 0.0)
        await ask_for(port, 4, 1)
        rows = [
            {
                "store": "bare",
                "clients": str(n),
                **await measured(whole, n, min(options.seconds, 5)),
            }
            for n in options.clients
        ]
    none = {
        "merge_ms": 0.0,
        "idle": 0.0,
        "start_s": 0.0,
        "start_cpu_s": 0.0,
        "restart_s": 0.0,
        "idle_parts": "",
    }
    return [{**row, **none} for row in rows]


async def run(options: argparse.Namespace) -> Table:
    """The stores one after another, and the pass-through."""
    if options.quick:
        options.seconds, options.idle, options.stores = 1.0, 2.0, options.stores[:1]
    node = free_port()
    with program("-m", "tests.bench.peers", "canned", str(node), port=node):
        rows = await of_bare(node, options)
        for store in options.stores:
            rows += await of_store(store, node, options)
    return Table(NAME, "the whole embedded stack", rows)


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
