"""A run of the demonstration: the stack, the users, the loop's events, the measurements.

It stops when a held-out figure's lower bound passes the goal, and reports a fresh measurement.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
from rich.console import Console

from reefcli.demo.figures import Figures, Measurement
from reefcli.demo.presets import Preset
from reefcli.demo.users import Users
from reefcli.demo.view import View
from reefcli.loop_events import describe, follow
from reefcommon import config as serve_config
from reefcommon.events import Release, ReleasePublished
from reefkit.bodies import FilesystemBodies
from reefstack.embedded import Options, Stack, embedded_stack
from reefstack.restart_policy import StackEvent
from reefstack.view import view_for

_FINAL_TIMES = 2  # the last measurement asks more often, so that its interval is narrower


@dataclass(slots=True)
class Demo:
    preset: Preset
    state_dir: Path
    seed: int
    console: Console
    figures: Figures = field(default_factory=Figures)
    started: float = field(default_factory=time.monotonic)
    view: View = field(init=False)
    _on_event: Callable[[StackEvent], None] = lambda _event: None
    _released: asyncio.Event = field(default_factory=asyncio.Event)
    _measurements: int = 0

    def __post_init__(self) -> None:
        self.view = View(self.console, self.preset, self.figures)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started

    @property
    def reached(self) -> bool:
        """Whether the measurement after the run confirms the goal."""
        return self.figures.final is not None and self._passes(self.figures.final)

    def _passes(self, point: Measurement) -> bool:
        # Both: a lucky first release is no proof that the loop works.
        enough = len(self.figures.learned) >= self.preset.releases_goal
        return enough and point.low >= self.preset.reward_goal

    async def run(self) -> None:
        """Start the stack, run the loop until the goal or the deadline, measure once more."""
        config = serve_config.load(self.preset.config)
        options = Options(config_path=self.preset.config)
        async with contextlib.AsyncExitStack() as exits:
            with view_for(self.console) as startup:
                self._on_event = startup
                stack = await exits.enter_async_context(
                    embedded_stack(config, self.state_dir, options, listener=self._tell)
                )
            self._on_event = self._while_running
            await self._run(stack)

    async def _run(self, stack: Stack) -> None:
        users = Users(self.preset, stack.urls["gateway"], self.figures, self.seed)
        self.view.show_panel()
        # The watcher first: it tells the first release, which is measured before the users begin.
        watcher = asyncio.ensure_future(self._watch(stack, users))
        jobs = [watcher, *map(asyncio.ensure_future, (self._ticker(), self._until_goal(users)))]
        failed = asyncio.ensure_future(stack.failed())
        try:
            ends: dict[str, Any] = {"return_when": asyncio.FIRST_COMPLETED}
            done, _ = await asyncio.wait([*jobs, failed], timeout=self.preset.deadline_s, **ends)
            if failed in done:
                raise failed.result()
            for job in done:
                job.result()
            if self.figures.heldout:
                await self._finally(users)
        finally:
            for job in (*jobs, failed):
                job.cancel()
            await asyncio.gather(*jobs, failed, return_exceptions=True)

    async def _until_goal(self, users: Users) -> None:
        await self._released.wait()
        self.view.say(f"reward of an answer: {self.preset.signal}")
        self.view.say(
            f"measuring the first release on {len(self.preset.heldout_tasks)} held-out questions, "
            f"{self.preset.heldout_samples} fresh answers each; no user asks these questions"
        )
        first = self._head
        await self._measure(users, first)
        self.figures.before = await users.shown(first.release_id)
        self.view.say(
            f"{self.preset.users} users ask and judge; a training step takes "
            f"{self.preset.batch} judged answers"
        )
        # Users go on while a release is measured: measurements are pinned to it.
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(users.live())
            while True:
                # Releases that came during a measurement are skipped: only the newest is measured.
                self._released.clear()
                await self._released.wait()
                point = await self._measure(users, self._head)
                if point is not None and self._passes(point):
                    break
            asking.cancel()

    async def _finally(self, users: Users) -> None:
        self.view.say("the users have left; measuring the serving release once more, anew")
        head = self._head
        samples = _FINAL_TIMES * self.preset.heldout_samples
        self.figures.final = await self._ask(users, head, samples)
        self.figures.after = await users.shown(head.release_id)

    @property
    def _head(self) -> Release:
        return self.figures.releases[-1].release

    async def _measure(self, users: Users, release: Release) -> Measurement | None:
        try:
            point = await self._ask(users, release, self.preset.heldout_samples)
        # The node keeps three adapters: an older release may be gone.
        except openai.ConflictError:
            return None
        self.figures.heldout.append(point)
        self.view.say(f"held-out reward of release {release.sequence}: {point} ({point.answers})")
        return point

    async def _ask(self, users: Users, release: Release, samples: int) -> Measurement:
        # Part of the seed: no two measurements share a draw.
        self._measurements += 1
        found = await users.heldout(release.release_id, self._measurements, samples=samples)
        return Measurement(self.elapsed_s, release.sequence, release.release_id, *found)

    async def _watch(self, stack: Stack, users: Users) -> None:
        bodies = FilesystemBodies(stack.state_dir / "bodies")
        async for event in follow(stack.kafka_bootstrap, bodies):
            if not self.figures.take(event):
                continue
            users.experience_consumed.set()
            if (line := describe(event, means=False)) is not None:
                self.view.say(line)
            if isinstance(event, ReleasePublished):
                self._released.set()

    async def _ticker(self) -> None:
        while True:
            await asyncio.sleep(1)
            figures, judged = self.figures, len(self.figures.rewards)
            waiting = max(judged - figures.consumed, 0)
            slow = "" if figures.steps else "; the first step loads its libraries"
            words = f"{judged} answers judged, {waiting} wait for a step or are in one{slow}"
            if judged:
                self.view.status(words)

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
