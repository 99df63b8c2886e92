"""A run of the demonstration: the stack, the users, the loop's events, the measurements.

It stops when a figure's lower bound passes the goal, or when the seeker is done, and reports a
fresh measurement.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
from rich.console import Console

from reefcli.demo.figures import Figures, Measurement
from reefcli.demo.stage import LiveStage
from reefcli.demo.variant import variant
from reefcli.demo.view import View
from reefcli.loop_events import describe, follow
from reefcli.output import counted
from reefcommon import config as serve_config
from reefcommon.demonstration import Arm, Demonstration
from reefcommon.events import Release, ReleasePublished, SignalComputed, utc_now
from reefkit.bodies import FilesystemBodies
from reefstack.embedded import Options, Stack, embedded_stack
from reefstack.models import prepare
from reefstack.restart_policy import StackEvent
from reefstack.view import view_for

_FINAL_TIMES = 2  # the last measurement asks more often, so that its interval is narrower
_QUIET_S = 3  # a release follows its verdict at once


def seekers_done(status: Mapping[str, Any]) -> bool:
    """Whether all seekers of the stack's status are done, and there are some."""
    services = status["services"].values()
    bindings = (row for found in services for row in found.get("bindings", {}).values())
    states = [row["seek"]["state"] for row in bindings if row.get("seek")]
    return bool(states) and set(states) == {"done"}


@dataclass(slots=True)
class Demo:
    demonstration: Demonstration
    state_dir: Path
    seed: int
    console: Console
    arm: Arm
    figures: Figures = field(default_factory=Figures)
    started: float = field(default_factory=time.monotonic)
    view: View = field(init=False)
    _on_event: Callable[[StackEvent], None] = lambda _event: None
    _released: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: str = "interrupted"
    scripted: bool = False
    _began_at: datetime = field(default_factory=utc_now)
    _doing: str = "waiting for the first release"
    _measurements: int = 0

    def __post_init__(self) -> None:
        self.view = View(self.console, self.demonstration, self.figures)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def reached(self) -> bool:
        """Whether the measurement after the run confirms the goal."""
        return self.figures.final is not None and self._passes(self.figures.final)

    def _passes(self, point: Measurement) -> bool:
        # Both: a lucky first release is no proof that the loop works.
        enough = len(self.figures.learned) >= self.demonstration.releases_goal
        return enough and point.low >= self.demonstration.goal

    async def run(self) -> None:
        """Start the stack, run the loop until the goal or the deadline, measure once more."""
        shown, path = self.demonstration, self.demonstration.config
        async with contextlib.AsyncExitStack() as exits:
            config = serve_config.load(path)
            endpoints = exits.enter_context(shown.endpoints())
            engine = exits.enter_context(shown.engine())
            self.scripted = bool(engine)
            options = Options(config_path=path)
            with view_for(self.console) as startup:
                self._on_event = startup
                made = await self._prepared(config.model.name)
                config = variant(config, self.arm, endpoints, made, engine)
                stack = await exits.enter_async_context(
                    embedded_stack(config, self.state_dir, options, listener=self._tell)
                )
            self._on_event = self._while_running
            await self._run(stack)

    async def _prepared(self, model: str) -> dict[str, Any]:
        shown = self.demonstration
        made = {"seed": self.seed} if shown.seeks else {}
        if type(shown).prepare is Demonstration.prepare:
            return made
        self._tell(StackEvent("preparation", "starting"))
        make = partial(prepare, model)
        made |= await asyncio.to_thread(shown.prepare, make, self.state_dir)
        self._tell(StackEvent("preparation", "ready"))
        return made

    async def _run(self, stack: Stack) -> None:
        stage = LiveStage(
            self.demonstration,
            stack.urls["gateway"],
            self.figures,
            self.seed,
            self.arm,
            self.view,
            self.state_dir,
        )
        self.view.show_panel()
        async with stage.connected():
            await self._loop(stack, stage)

    async def _loop(self, stack: Stack, stage: LiveStage) -> None:
        # The watcher first: it tells the first release, which is measured before the users begin.
        work = self._watch(stack, stage), self._ticker(), self._until_goal(stage)
        jobs, failed = [*map(asyncio.ensure_future, work)], asyncio.ensure_future(stack.failed())
        try:
            limit_s, first = 60 * self.demonstration.minutes, asyncio.FIRST_COMPLETED
            done, _ = await asyncio.wait([*jobs, failed], timeout=limit_s, return_when=first)
            if failed in done:
                raise failed.result()
            for job in done:
                job.result()
            ended = "done" if self.demonstration.seeks else "goal"
            self.stopped = ended if done else "limit"
            if self.figures.heldout:
                await self._finally(stage)
        finally:
            for job in (*jobs, failed):
                job.cancel()
            await asyncio.gather(*jobs, failed, return_exceptions=True)

    async def _until_goal(self, stage: LiveStage) -> None:
        shown = self.demonstration
        await self._serving(stage.gateway_url)
        arm = f"; {self.arm.about}" if self.arm.about else ""
        self.view.say(f"reward of an answer: {shown.signal}{arm}")
        asked = (
            f", on {len(shown.test_tasks)} held-out questions, {shown.test_samples} "
            "fresh answers each; neither users nor the evaluator ask these"
        )
        self.view.say(
            f"measuring release {self._head.sequence}, which serves now"
            f"{asked if shown.test_tasks else ''}"
        )
        first, self._doing = self._head, "measuring what serves at the start"
        await self._measure(stage, first)
        self.figures.before = await stage.shown(first.release_id)
        who = "the seeker asks" if shown.seeks else f"{shown.users} users ask and judge"
        self.view.say(f"{who}; a training step takes {counted(shown.batch, 'judged answer')}")
        self._doing = ""
        # Users go on while a release is measured: measurements are pinned to it.
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(stage.crowd())
            measuring = group.create_task(self._measure_each(stage, first.release_id))
            await (self._sought(stage.gateway_url) if shown.seeks else measuring)
            measuring.cancel()
            asking.cancel()

    async def _measure_each(self, stage: LiveStage, measured: str) -> None:
        """Measure the releases after `measured`, until one passes; all of a seeker."""
        while True:
            # Of the releases that came during a measurement only the newest is measured.
            self._released.clear()
            if self._head.release_id == measured:
                await self._released.wait()
            measured = self._head.release_id
            self._doing = f"release {self._head.sequence} is being measured"
            point = await self._measure(stage, self._head)
            self._doing = ""
            if point is not None and self._passes(point) and not self.demonstration.seeks:
                return

    async def _sought(self, gateway_url: str) -> None:
        """Wait until the seekers are done and their last candidates have verdicts."""
        async with httpx.AsyncClient(base_url=gateway_url, timeout=60, trust_env=False) as http:
            quiet_s = 0
            while quiet_s < _QUIET_S:
                await asyncio.sleep(1)
                done = seekers_done((await http.get("/reef/status")).json())
                quiet_s = quiet_s + 1 if done and not self.figures.comparing else 0

    async def _finally(self, stage: LiveStage) -> None:
        who = "search is over" if self.demonstration.seeks else "users have left"
        self.view.say(f"the {who}; measuring the serving release once more, anew")
        head, self._doing = self._head, "the last measurement"
        samples = _FINAL_TIMES * self.demonstration.test_samples
        self.figures.final = await self._ask(stage, head, samples)
        self.figures.after = await stage.shown(head.release_id)

    async def _serving(self, gateway_url: str) -> None:
        """Wait until the newest release in the log is the release that serves."""
        async with httpx.AsyncClient(base_url=gateway_url, timeout=60, trust_env=False) as http:
            while True:
                await self._released.wait()
                heads = (await http.get("/reef/scenarios")).json()["data"]
                if self._head.release_id in [row["head"]["release_id"] for row in heads]:
                    return
                await asyncio.sleep(0.2)

    @property
    def _head(self) -> Release:
        return self.figures.releases[-1].release

    async def _measure(self, stage: LiveStage, release: Release) -> Measurement | None:
        try:
            point = await self._ask(stage, release, self.demonstration.test_samples)
        # The node keeps three adapters: an older release may be gone.
        except openai.ConflictError:
            return None
        self.figures.heldout.append(point)
        figure = self.demonstration.figure
        self.view.say(f"{figure} of release {release.sequence}: {point.counted}")
        return point

    async def _ask(self, stage: LiveStage, release: Release, samples: int) -> Measurement:
        # Part of the seed: no two measurements share a draw.
        self._measurements += 1
        named = release.release_id
        found = await self.demonstration.measure(stage, named, self._measurements, samples)
        figure = found.mean, found.low, found.high, found.answers
        return Measurement(self.elapsed_s, release.sequence, named, *figure)

    async def _watch(self, stack: Stack, stage: LiveStage) -> None:
        bodies = FilesystemBodies(stack.state_dir / "bodies")
        async for event in follow(stack.kafka_bootstrap, bodies, signals=True):
            old = event.at < self._began_at  # with --continue the log begins with the last run
            if not self.figures.take(event, of_last_run=old):
                continue
            stage.experience_consumed.set()
            if isinstance(event, SignalComputed):
                line = None if old else self.demonstration.line(event)
            else:
                line = None if old else describe(event, means=False)
            if line is not None:
                self.view.say(line, short=line.partition("; rule: ")[0])
            if isinstance(event, ReleasePublished):
                self._released.set()

    async def _ticker(self) -> None:
        while True:
            await asyncio.sleep(1)
            figures, judged = self.figures, self.figures.experienced
            slow = "" if figures.steps else "; the first step loads its libraries"
            words = (
                f"{judged} answers judged, {figures.waiting} wait for a step or are in one{slow}"
            )
            now = time.monotonic()
            waits = [
                f"candidate {number} is being compared, {now - since:.0f} s"
                for number, since in figures.comparing.values()
            ]
            told = filter(None, (words if judged else "", self._doing, *waits[-1:]))
            self.view.status("; ".join(told))

    def _tell(self, event: StackEvent) -> None:
        self._on_event(event)

    def _while_running(self, event: StackEvent) -> None:
        if event.kind == "restarting":
            self.figures.restarts.append(event.name)
        if event.kind == "stopping" and event.name == "gateway":
            self.view.say("stopping everything in order; this takes some seconds")
        if event.kind in ("died", "restarting") or (
            event.kind == "ready" and event.name in self.figures.restarts
        ):
            self.view.say(f"{event.name} {event.kind} {event.text}".rstrip())
