"""How long users wait while a candidate is judged on the same node, beside how long they wait without it.

    python -m tests.bench.users [--model smollm2|tiny] [--clients 2] [--tokens 4] [--rounds 2]

A round: the trial alone; users alone for `--seconds`; then users beside a trial, until the trial has ended. Users are clients that ask
again as soon as they have their answer. A trial scores held-out samples of 300 tokens and samples answers, all with `priority: 10`.
Rounds take turns, so that all see the same machine; the ratios are the figures to compare.
"""

import argparse
import asyncio
import sys
import time
from dataclasses import replace
from typing import Any

from tests.bench import harness
from tests.bench.engine import Ours
from tests.bench.harness import Table, tell

NAME = "users"
WHAT = "users' latency with and without a trial on the same node"
BACKGROUND = 10


def arguments(parser: argparse.ArgumentParser) -> None:
    """What can be chosen."""
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--clients", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=4, help="new tokens a user's request")
    parser.add_argument("--samples", type=int, default=4, help="scored samples a trial")
    parser.add_argument("--answers", type=int, default=4, help="answers a trial, 16 tokens each")
    parser.add_argument("--seconds", type=float, default=20.0, help="users alone, each round")
    parser.add_argument("--rounds", type=int, default=2)


class Load:
    """Users and trials on one engine."""

    def __init__(self, ours: Ours, options: argparse.Namespace) -> None:
        self._ours = ours
        self._options = options

    async def trial(self) -> float:
        """Seconds of one trial."""
        scoring = replace(self._ours.params, priority=BACKGROUND, prompt_logprobs=0)
        answering = replace(self._ours.params, priority=BACKGROUND, max_tokens=16)
        sample = (self._ours.ids * 20)[:300]
        started = time.perf_counter()
        await asyncio.gather(
            *(self._ask(sample, scoring) for _ in range(self._options.samples)),
            *(self._ask(self._ours.ids, answering) for _ in range(self._options.answers)),
        )
        return time.perf_counter() - started

    async def users(self, until: asyncio.Event) -> list[float]:
        """Seconds of every request until the event."""
        clients = (self._client(until) for _ in range(self._options.clients))
        return [wait for waits in await asyncio.gather(*clients) for wait in waits]

    async def _client(self, until: asyncio.Event) -> list[float]:
        waits = []
        while not until.is_set():
            started = time.perf_counter()
            await self._ask(
                self._ours.ids, replace(self._ours.params, max_tokens=self._options.tokens)
            )
            waits.append(time.perf_counter() - started)
        return waits

    async def _ask(self, ids: list[int], params: Any) -> None:
        async for _ in self._ours.engine.generate([ids], [params], None).events():
            pass


async def run(options: argparse.Namespace) -> Table:
    """Measure in turns."""
    from reefstack.models import default_cache_dir, prepare

    if options.quick:
        options.model, options.rounds, options.seconds = "tiny", 1, 0.5
    path = prepare(options.model, default_cache_dir())
    ours = await asyncio.to_thread(Ours, path, asyncio.get_running_loop())
    load = Load(ours, options)
    alone: list[float] = []
    beside: list[float] = []
    trials: list[tuple[float, float]] = []
    try:
        for number in range(options.rounds):
            trial_s = await load.trial()
            ended = asyncio.Event()
            users = asyncio.create_task(load.users(ended))
            await asyncio.sleep(options.seconds)
            ended.set()
            alone += await users
            ended = asyncio.Event()
            users = asyncio.create_task(load.users(ended))
            trials.append((trial_s, await load.trial()))
            ended.set()
            beside += await users
            tell(
                f"round {number + 1} of {options.rounds}: a trial took {trials[-1][0]:.1f} s alone, "
                f"{trials[-1][1]:.1f} s beside users"
            )
    finally:
        await asyncio.to_thread(ours.engine.loop.stop)
    rows = [row(share, alone, beside) for share in (0.5, 0.9, 0.99)]
    return Table(
        NAME,
        f"seconds of a user's request of {options.tokens} tokens, {options.clients} clients, {options.model}",
        rows,
        [
            f"{len(alone)} requests without, {len(beside)} with a trial",
            *(f"a trial: {a:.1f} s alone, {b:.1f} s beside users" for a, b in trials),
        ],
    )


def row(share: float, alone: list[float], beside: list[float]) -> harness.Row:
    """One quantile of both."""
    without, with_trial = harness.quantile(alone, share), harness.quantile(beside, share)
    return {
        "quantile": f"p{share * 100:.0f}",
        "without_s": without,
        "with_trial_s": with_trial,
        "ratio": with_trial / without,
    }


if __name__ == "__main__":
    harness.main(sys.modules[__name__])
