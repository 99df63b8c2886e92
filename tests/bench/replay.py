"""How fast the log becomes a store again: `python -m tests.bench.replay --events 100000`.

Broker, Redis and the experience service run as processes; the log is filled with the mix of
`tests/replay/traffic.py` (exchanges with token arrays, reports, steps, releases, poison), the
service handles it, then `reef replay` reads it again beside them and compares. Prints one line of
JSON; `events_per_s` is the reading and rebuilding, `compare_s` the rest of the command, start
included.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

from tests.replay.system import system


async def measure(events: int, seed: int, *, memory_broker: bool) -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        async with system(Path(folder) / "state", memory_broker=memory_broker) as running:
            began = time.perf_counter()
            sent = await running.fill(events, seed)
            filled = time.perf_counter()
            await running.idle(within_s=600)
            handled = time.perf_counter()
            await asyncio.sleep(4)  # reports of receipts that nobody knows are given up
            started = time.perf_counter()
            code, found, said = await running.replay(within_s=600)
            whole = time.perf_counter() - started
    if not found:
        raise SystemExit(f"exit code {code}: {said}")
    return {
        "equal": found["equal"],
        "events": sent,
        "events_per_s": found["events_per_s"],
        "replay_s": found["seconds"],
        "compare_s": round(whole - float(str(found["seconds"])), 2),
        "first_reading_s": round(handled - filled, 2),
        "fill_s": round(filled - began, 2),
        "rows": found["rows"],
        "releases": found["releases"],
        "dead_letters": found["dead_letters"],
        "differences": found["differences"],
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--s3",
        action="store_true",
        help="keep the log on the local object store instead of in memory",
    )
    asked = parser.parse_args()
    sys.stdout.write(
        json.dumps(asyncio.run(measure(asked.events, asked.seed, memory_broker=not asked.s3)))
        + "\n"
    )
