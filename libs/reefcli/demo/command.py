"""`reef demo`: start the embedded stack, let simulated users work with it, and watch the model become better while it serves.

    users --chat--> gateway --topics--> experience --samples--> trainer --candidate--> evaluator --verdict--> publisher --release--> gateway
      ^                                                                                                                                |
      '------------------------------------------- the next answer comes from better weights ------------------------------------------'

The run is over when the served model has reached the preset's reward on held-out tasks and enough releases were published.
"""

import asyncio
import contextlib
import json
import shutil
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from reefcli.demo import report
from reefcli.demo.presets import PRESETS, Preset
from reefcli.demo.progress import Progress
from reefcli.demo.users import Users
from reefcli.demo.view import LiveView, PlainView, View, describe
from reefcli.demo.watch import follow
from reefcli.options import program
from reefcommon import config as serve_config
from reefcommon.errors import BadConfig
from reefcommon.events import ReleasePublished
from reefstack.embedded import Options, Stack, embedded_stack
from reefstack.errors import CannotStart, StackFailed
from reefstack.restart_policy import StackEvent
from reefstack.state import locked, why_no_directory

NEXT_STEPS = """What to try next (the improved model is in {state}; `reef demo` without --continue begins anew):
  {reef} serve -c {config} --state-dir {state}
      serves it, and says where it listens (8900, where that is free); then, in another terminal:
  curl -i http://127.0.0.1:8900/v1/chat/completions -H 'content-type: application/json' \\
       -d '{{"model": "reef", "messages": [{{"role": "user", "content": "Who are you?"}}]}}'
  {reef} records --state-dir {state}
      what was recorded; each line begins with a receipt
  {reef} releases --state-dir {state}
      the chain; `{reef} rollback default RELEASE_ID --state-dir {state}` brings an earlier release back"""

_SILENCE_S = 10.0


@dataclass(slots=True)
class Demo:
    """One run: the stack's events, the users, the watcher and the measurements meet here."""

    preset: Preset
    state_dir: Path
    seed: int
    view: View
    progress: Progress
    started: float = field(default_factory=time.monotonic)
    said_at: float = field(default_factory=time.monotonic)
    new_release: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def say(self, text: str) -> None:
        """One line that matters."""
        self.said_at = time.monotonic()
        self.view.say(text)

    def on_stack(self, event: StackEvent) -> None:
        """The supervisor says something."""
        if event.kind == "restarting":
            self.progress.restarts.append(event.name)
        if event.kind == "starting":
            self.progress.starting.append(event.name)
        if event.kind == "ready" and event.name in self.progress.starting:
            self.progress.starting.remove(event.name)
        if event.kind == "stopping" and event.name == "gateway":
            self.say("stopping everything in order; this takes some seconds")
        if event.kind in {"ready", "died", "restarting"} or (
            event.kind == "progress" and event.text
        ):
            still = ", ".join(self.progress.starting)
            self.say(
                f"{event.name:<11} {event.kind} {event.text}"
                + (f"   (starting: {still})" if still else "")
            )

    async def run(self) -> bool:
        """The whole demonstration. True where the goal was reached."""
        silence = asyncio.ensure_future(self._while_silent())
        try:
            return await self._run()
        finally:
            silence.cancel()
            await asyncio.gather(silence, return_exceptions=True)

    async def _run(self) -> bool:
        config = serve_config.load(self.preset.config)
        options = Options(config_path=self.preset.config)
        async with embedded_stack(config, self.state_dir, options, listener=self.on_stack) as stack:
            users = Users(self.preset, stack.urls["gateway"], self.progress, self.seed)
            self.say(
                "asking the model that serves now the held-out questions, to know where it begins"
            )
            await self._measure(users)
            self.say(
                f"{self.preset.users} users ask and judge the answers; a training step takes {self.preset.batch} of them"
            )
            work = (
                users.live(),
                self._watch(stack, users),
                self._until_reached(users),
                stack.failed(),
            )
            jobs = [asyncio.ensure_future(job) for job in work]
            try:
                done, _ = await asyncio.wait(
                    jobs, timeout=self.preset.deadline_s, return_when=asyncio.FIRST_COMPLETED
                )
                for job in done:
                    result = job.result()
                    if isinstance(result, StackFailed):
                        raise result
            finally:
                for job in jobs:
                    job.cancel()
                await asyncio.gather(*jobs, return_exceptions=True)
            self.say("the users go home")
            return self._reached()

    def _reached(self) -> bool:
        return (
            self.progress.heldout[-1][2] >= self.preset.reward_goal
            and len(self.progress.learned) >= self.preset.releases_goal
        )

    async def _while_silent(self) -> None:
        """Say how far it is where nothing has been said for a while."""
        while True:
            await asyncio.sleep(1)
            if time.monotonic() - self.said_at < _SILENCE_S:
                continue
            if self.progress.starting:
                self.say(f"still starting: {', '.join(self.progress.starting)}")
            elif self.progress.rewards:
                waiting = len(self.progress.rewards) - self.progress.consumed
                first = (
                    ""
                    if self.progress.steps
                    else "; the first step loads the libraries and takes longest"
                )
                self.say(
                    f"{len(self.progress.rewards)} answers judged, {waiting} of them wait for a training step or are in one{first}"
                )

    async def _measure(self, users: Users, samples: int | None = None) -> None:
        """One point of the curve: held-out reward of what the gateway serves now."""
        sequence = self.progress.releases[-1].release.sequence if self.progress.releases else 0
        value = await users.heldout_reward(samples=samples)
        self.progress.heldout.append((self.elapsed_s, sequence, value))
        self.say(f"held-out reward of the served model: {value:.3f}")

    async def _until_reached(self, users: Users) -> None:
        while True:
            await self.new_release.wait()
            self.new_release.clear()
            await self._measure(users)
            if self._reached():  # luck is not enough: once more, on more samples
                await self._measure(users, samples=3 * self.preset.heldout_samples)
                if self._reached():
                    return

    async def _watch(self, stack: Stack, users: Users) -> None:
        async for event in follow(stack.kafka_bootstrap):
            if not self.progress.take(event):
                continue
            users.something_consumed.set()
            line = describe(event)
            if line is not None:
                self.say(line)
            if isinstance(event, ReleasePublished) and event.release.operation == "training":
                self.new_release.set()
            self.view.refresh()


def demo(
    model: Annotated[
        str,
        typer.Option(
            help="smollm2: the real 135M model, five to ten minutes. tiny: under two minutes."
        ),
    ] = "smollm2",
    state_dir: Annotated[
        Path | None, typer.Option(help="Where the stack keeps its state. Default: .reef/demo-MODEL")
    ] = None,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh/--continue",
            help="Begin with an empty state directory, or go on with the last one.",
        ),
    ] = True,
    seed: Annotated[int, typer.Option(help="Of the users' questions and samples.")] = 0,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="The last line on standard output is a JSON object with the figures."
        ),
    ] = False,
) -> None:
    """See the whole loop: users ask, answers are rewarded, a LoRA learns, candidates are judged, winners serve while requests run.

    Everything runs on this machine; nothing is downloaded. Examples:

      reef demo

      reef demo --model tiny --json
    """
    preset = PRESETS.get(model)
    if preset is None:
        raise typer.BadParameter(
            f"{model!r} is not one of {', '.join(PRESETS)}", param_hint="--model"
        )
    state = state_dir or Path(".reef") / f"demo-{model}"
    console = Console(stderr=as_json)
    progress = Progress()
    view: View = LiveView(console, preset, progress) if console.is_terminal else PlainView(console)
    run = Demo(preset, state, seed, view, progress)
    reached, failure = False, ""
    with contextlib.suppress(KeyboardInterrupt), view:
        view.say(preset.about)
        view.say(
            f"goal: held-out reward {preset.reward_goal} and {preset.releases_goal} releases; lag = releases behind the head"
        )
        try:
            if fresh and _forget(state):
                view.say(
                    f"the state of an earlier demonstration was removed from {state} (--continue keeps it)"
                )
            reached = asyncio.run(run.run())
        except (CannotStart, StackFailed, BadConfig) as error:
            failure = str(error)
    if failure:
        console.print(failure, style="red", markup=False, highlight=False, soft_wrap=True)
        raise typer.Exit(1)
    summary = progress.summary(model=model, elapsed_s=run.elapsed_s, reached=reached)
    _finish(console, run, summary, as_json=as_json)
    raise typer.Exit(0 if reached else 1)


def _finish(console: Console, run: Demo, summary: dict[str, Any], *, as_json: bool) -> None:
    if len(run.progress.heldout) < 2:
        console.print("Stopped before anything was learned.")
        return
    png = report.draw_png(run.progress, run.state_dir / "reward.png", title=run.preset.about)
    words = NEXT_STEPS.format(state=run.state_dir, config=_shown(run.preset.config), reef=program())
    report.show(console, run.progress, summary, png=png, next_steps=words)
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")


def _shown(path: Path) -> Path:
    """A path as short as it can be written from here."""
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _forget(state: Path) -> bool:
    """Remove the state of an earlier demonstration, and nothing that is not one. False where there was none.

    Raises:
        typer.BadParameter: the directory holds something else, or is a file.
    """
    if reason := why_no_directory(state):
        raise typer.BadParameter(reason, param_hint="--state-dir")
    if not state.exists():
        return False
    if any(state.iterdir()) and not (state / "secrets.json").is_file():
        raise typer.BadParameter(
            f"{state} holds something that is not Reef's state; choose another directory",
            param_hint="--state-dir",
        )
    with locked(state):
        pass  # somebody's running stack is never taken away
    shutil.rmtree(state)
    return True
