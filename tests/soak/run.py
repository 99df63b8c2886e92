"""One soak: start, load, sample, stop while requests run, start again, look for every receipt,
stop.
"""

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

import aiohttp
import psutil

from reefcommon.config import load as load_config
from reefstack.embedded import Options, embedded_stack
from reefstack.state import StackState
from tests.soak.load import Load, Seen
from tests.soak.sampler import Sampler, wait_ready
from tests.soak.series import verdicts
from tests.soak.verdict import Point, Verdict

ROOT = Path(__file__).parents[2]
# Policies that would bound something after a day or a month, short enough to be seen at work within
# the warm-up.
POLICIES = {
    "REEF_EXPERIENCE_SESSION_TTL_S": "60",
    "REEF_EXPERIENCE_REPORT_WAIT_S": "60",
    "REEF_GATEWAY_KEY_TTL_S": "60",
    "REEF_PUBLISHER_WORK_KEPT_S": "60",
    "REEF_TRAINER_SETTLED_KEPT_S": "300",
    "REEF_TRAINER_REJECTED_KEPT_S": "300",
    "REEF_TRAINER_RETENTION_EVERY_S": "30",
    "REEF_HARNESS_SETTLED_KEPT_S": "300",
    "REEF_HARNESS_REJECTED_KEPT_S": "300",
    "REEF_HARNESS_RETENTION_EVERY_S": "30",
}
DRAIN_WITHIN_S = 60.0
FOUND_WITHIN_S = 120.0
Tell = Callable[[float, str], None]
"""(share of the run, 0 to 1; a line of words)"""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked for. `rate`: requests a second; `every_s`: seconds between two samples."""

    minutes: float
    rate: float
    state_dir: Path
    seed: int = 0
    every_s: float = 15.0
    samples_path: Path | None = None
    config: Path = ROOT / "tests" / "soak" / "serve.yaml"
    restart: Literal["all", "store"] = "all"
    """What is started again to look for the receipts: everything, or the log and the store alone, which is faster."""


@dataclass(slots=True)
class Outcome:
    """What was seen."""

    plan: Plan
    verdicts: list[Verdict] = field(default_factory=list)
    samples: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    drain_s: float = 0.0
    exit_code: int | None = None
    left_over: list[str] = field(default_factory=list)
    receipts: int = 0
    missing: list[str] = field(default_factory=list)
    cpu_cores: float = 0.0
    started_again_s: float = 0.0

    @property
    def problems(self) -> list[str]:
        """Why this soak has not passed; empty where it has."""
        grown = [
            f"{v.name} grows by {v.per_hour:.2f} an hour, {v.allowed_per_hour:.2f} are allowed"
            for v in self.verdicts
            if v.word == "GROWING"
        ]
        found = [*grown]
        if self.missing:
            found.append(
                f"{len(self.missing)} acknowledged receipts are not in the store, such as {self.missing[0]}"
            )
        if self.exit_code != 0:
            found.append(f"the stack ended with {self.exit_code}")
        if self.drain_s > DRAIN_WITHIN_S:
            found.append(f"the stop took {self.drain_s:.1f} s")
        if self.left_over:
            found.append(f"processes were left: {', '.join(self.left_over)}")
        if self.counts.get("failed"):
            found.append(f"{self.counts['failed']} requests failed; first: {self.failures[0]}")
        return found

    def as_json(self) -> dict[str, Any]:
        """Everything but the samples."""
        return {
            "passed": not self.problems,
            "problems": self.problems,
            "minutes": round(self.seconds / 60, 2),
            "rate": self.plan.rate,
            "policies": POLICIES,
            "samples": self.samples,
            "counts": self.counts,
            "cpu_cores": round(self.cpu_cores, 3),
            "drain_s": round(self.drain_s, 2),
            "exit_code": self.exit_code,
            "left_over": self.left_over,
            "started_again_s": round(self.started_again_s, 2),
            "receipts": self.receipts,
            "missing": self.missing[:20],
            "failures": self.failures[:20],
            "verdicts": [verdict.as_dict for verdict in self.verdicts],
        }


@dataclass(slots=True)
class Serving:
    """A running `reef serve`."""

    process: subprocess.Popen[bytes]
    state: StackState

    @classmethod
    def start(cls, state_dir: Path, config: Path, log: TextIO) -> "Serving":
        """Start one and wait until it is up."""
        since = time.time() - 1
        paths = os.pathsep.join((str(ROOT), str(ROOT / "libs")))
        process = subprocess.Popen(
            [sys.executable, "-m", "reefcli", "serve", "-c", str(config), "--state-dir", str(state_dir)],
            cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **POLICIES, "REEF_FREE_PORTS": "1", "PYTHONPATH": paths},
        )  # fmt: skip
        try:
            return cls(process, wait_ready(state_dir, since, 240, lambda: process.poll() is None))
        except BaseException:
            process.terminate()
            process.wait(60)
            raise

    def stop(self, within_s: float = 120.0) -> tuple[float, int | None]:
        """Ask it to end. Returns (seconds, exit code)."""
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = None
        with suppress(subprocess.TimeoutExpired):
            code = self.process.wait(within_s)
        if code is None:
            self.process.kill()
            self.process.wait(30)
        return time.monotonic() - began, code

    def left_over(self, own: set[int]) -> list[str]:
        """Processes of `own` that still live."""
        found = []
        for pid in own:
            with suppress(psutil.Error):
                process = psutil.Process(pid)
                if (
                    process.status() != psutil.STATUS_ZOMBIE
                    and process.create_time() >= self.state.started_at - 60
                ):
                    found.append(f"{process.name()} ({pid})")
        return found

    def pids(self) -> set[int]:
        """Everything that belongs to it now."""
        with suppress(psutil.Error):
            return {
                self.process.pid,
                *(child.pid for child in psutil.Process(self.process.pid).children(recursive=True)),
            }
        return {self.process.pid}


async def soak(plan: Plan, tell: Tell, enough: asyncio.Event | None = None) -> Outcome:
    """The whole run. `enough`: set it to end the load before its time; what was sampled until
    then is judged.
    """
    outcome, seen, enough = Outcome(plan), Seen(), enough or asyncio.Event()
    plan.state_dir.mkdir(parents=True, exist_ok=True)
    with (plan.state_dir / "soak.log").open("a") as log:
        tell(0.0, "starting the stack")
        serving = await asyncio.to_thread(Serving.start, plan.state_dir, plan.config, log)
        try:
            await _live(plan, serving, seen, outcome, tell, enough)
        except BaseException:
            await asyncio.to_thread(serving.stop)
            raise
        outcome.receipts = len(seen.records) + len(seen.reports)
        outcome.counts, outcome.failures = dict(seen.counts), seen.failures
        tell(
            1.0,
            f"stopped in {outcome.drain_s:.1f} s; starting again to look for {outcome.receipts} receipts",
        )
        began = time.monotonic()
        if plan.restart == "all":
            again = await asyncio.to_thread(Serving.start, plan.state_dir, plan.config, log)
            outcome.started_again_s = time.monotonic() - began
            try:
                outcome.missing = await missing(again.state.urls["gateway"], "/reef", seen)
            finally:
                await asyncio.to_thread(again.stop)
        else:
            options = Options(only=frozenset({"kafka", "experience"}), default_ports=False)
            async with embedded_stack(load_config(plan.config), plan.state_dir, options) as store:
                outcome.started_again_s = time.monotonic() - began
                outcome.missing = await missing(store.urls["experience"], "", seen)
    return outcome


async def _live(
    plan: Plan, serving: Serving, seen: Seen, outcome: Outcome, tell: Tell, enough: asyncio.Event
) -> None:
    """Load and samples; at the end a stop while requests are under way."""
    load = Load(serving.state.urls["gateway"], plan.rate, random.Random(plan.seed), seen)
    series: dict[str, list[Point]] = {}
    began = time.monotonic()
    working = asyncio.create_task(load.run())
    try:
        while (elapsed := time.monotonic() - began) < plan.minutes * 60 and not enough.is_set():
            with suppress(TimeoutError):
                await asyncio.wait_for(
                    enough.wait(), min(plan.every_s, plan.minutes * 60 - elapsed)
                )
            await _look(plan, serving, seen, series, time.monotonic() - began, outcome)
            share = (time.monotonic() - began) / (plan.minutes * 60)
            tell(
                min(share, 1.0),
                f"{seen.counts['answered']} answered, {seen.counts['failed']} failed, {seen.counts['reported']} reports",
            )
            if working.done():
                working.result()
        outcome.seconds = time.monotonic() - began
        pids = serving.pids()
        load.stopping = True  # what is under way goes on while the stack is asked to end
        outcome.drain_s, outcome.exit_code = await asyncio.to_thread(serving.stop)
        outcome.left_over = serving.left_over(pids)
    finally:
        load.stopping = True
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
    outcome.verdicts = verdicts(series)
    cpu = [points for name, points in series.items() if name.startswith("cpu_s:")]
    outcome.cpu_cores = sum(
        (p[-1].value - p[0].value) / max(p[-1].t_s - p[0].t_s, 1.0) for p in cpu if len(p) > 1
    )


async def _look(
    plan: Plan,
    serving: Serving,
    seen: Seen,
    series: dict[str, list[Point]],
    t_s: float,
    outcome: Outcome,
) -> None:
    sampler = Sampler(plan.state_dir, serving.state)
    async with aiohttp.ClientSession() as http:
        figures = await sampler.sample(http)
    outcome.samples += 1
    requests = seen.counts["answered"] + seen.counts["dropped"]
    for name, value in figures.items():
        series.setdefault(name, []).append(Point(t_s, value, requests))
    if plan.samples_path is not None:
        with plan.samples_path.open("a") as file:
            file.write(
                json.dumps(
                    {
                        "t_s": round(t_s, 1),
                        "requests": requests,
                        **{k: round(v, 3) for k, v in figures.items()},
                    }
                )
                + "\n"
            )


async def missing(url: str, prefix: str, seen: Seen) -> list[str]:
    """Receipts that the store does not know, once it has had the time to read what the log
    holds.
    """
    deadline = time.monotonic() + FOUND_WITHIN_S
    left = set(seen.records) | set(seen.reports)
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=60)) as http:
        for scenario in sorted(set(seen.records.values())):
            left -= await _listed(http, f"{prefix}/scenarios/{scenario}/records")
        while left and time.monotonic() < deadline:
            slots = asyncio.Semaphore(8)
            known = await asyncio.gather(
                *(_known(http, slots, f"{prefix}/records/", receipt) for receipt in sorted(left))
            )
            left -= {receipt for receipt in known if receipt}
            await asyncio.sleep(0.5)
    return sorted(left)


async def _listed(http: aiohttp.ClientSession, path: str) -> set[str]:
    """All receipts of a scenario, in pages: thousands of single look-ups take minutes."""
    found: set[str] = set()
    cursor = None
    while True:
        query = {"limit": "200", **({"cursor": cursor} if cursor else {})}
        async with http.get(path, params=query) as response:
            if response.status != 200:
                return found
            page = await response.json()
        found.update(row["record_id"] for row in page["data"])
        cursor = page.get("next_cursor")
        if not cursor:
            return found


async def _known(
    http: aiohttp.ClientSession, slots: asyncio.Semaphore, path: str, receipt: str
) -> str:
    async with slots, http.get(path + receipt) as response:
        await response.read()
        return receipt if response.status == 200 else ""
