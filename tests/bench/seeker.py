"""How long users wait while a recipe seeks on the same machine, beside how long they wait afterwards.

    python -m tests.bench.seeker [--config recipes/ttt_discover/examples/row_pattern/serve.yaml] [--steps 8] [--clients 2] [--tokens 4]

The whole stack, through the gateway. Users are clients that ask again as soon as they have their answer; the seeker's questions and the
training have the whole rest of the machine. `with`: from the first question of the seeker until it is done; `without`: `--seconds` after.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import httpx

from tests.bench import harness
from tests.bench.harness import Table, tell

NAME = "seeker"
WHAT = "users' latency while a recipe seeks and trains"
CONFIG = Path("recipes/ttt_discover/examples/row_pattern/serve.yaml")


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


async def measure(url: str, options: argparse.Namespace) -> tuple[list[float], list[float], float]:
    """Waits without and with the seeker, and the seconds of the search."""
    found = []
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        await sought(http, "seeking")
        began = time.perf_counter()
        for end in (sought(http, "done"), asyncio.sleep(options.seconds)):
            ended = asyncio.Event()
            users = [
                asyncio.create_task(client(http, options.tokens, ended))
                for _ in range(options.clients)
            ]
            await end
            if not found:
                search_s = time.perf_counter() - began
                tell(f"the search took {search_s:.1f} s beside users")
            ended.set()
            found.append([wait for waits in await asyncio.gather(*users) for wait in waits])
    beside, alone = found
    return alone, beside, search_s


async def run(options: argparse.Namespace) -> Table:
    """Start the stack, and measure beside the search and after it."""
    from reefcli.demo.variant import variant
    from reefcommon import config
    from reefcommon.demonstration import Arm
    from reefstack.embedded import Options, embedded_stack

    if options.quick:
        options.steps, options.seconds = 1, 1.0
    told = variant(
        config.load(options.config), Arm("bench", knobs={"steps": options.steps}), {}, {}
    )
    with tempfile.TemporaryDirectory() as state:
        async with embedded_stack(told, Path(state), Options(default_ports=False)) as stack:
            alone, beside, search_s = await measure(stack.urls["gateway"], options)
    rows = []
    for share in (0.5, 0.9, 0.99):
        without, with_ = (harness.quantile(waits, share) for waits in (alone, beside))
        name = f"p{share * 100:.0f}"
        ratio = with_ / without
        rows.append({"quantile": name, "without_s": without, "with_s": with_, "ratio": ratio})
    about = f"{len(alone)} requests without, {len(beside)} with; {options.steps} steps in {search_s:.1f} s"
    title = f"seconds of a user's request of {options.tokens} tokens, {options.clients} clients"
    return Table(NAME, title, rows, [about])


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
