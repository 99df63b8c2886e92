"""`reef demo`: the whole loop on this machine, with simulated users, shown live.

users --chat--> gateway --> experience --samples--> trainer --candidate--> evaluator
  ^                                                                            |
  '---- the next answer comes from better weights <---- publisher <--verdict---'
"""

import asyncio
import contextlib
import io
import json
import shlex
import shutil
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from time import time_ns
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from reefcli import curl
from reefcli.demo import report
from reefcli.demo.presets import PRESETS, Preset, as_messages
from reefcli.demo.run import Demo
from reefcli.options import AsJson, program
from reefcommon import config as serve_config
from reefcommon.errors import BadConfig
from reefcommon.statistics import independent_seed
from reefstack.errors import CannotStart, StackFailed
from reefstack.state import locked, why_no_directory

NEXT_STEPS = """What to try next ({what} is in {state}; --continue goes on with it):
  {reef} serve -c {config} --state-dir {state}
      serves it, and says where it listens (8900, if that port is free). In another terminal:
  {before}
      the model before it learned
  {after}
      the model now
  {reef} releases default --state-dir {state}
      the chain; `{reef} rollback default RELEASE_ID --state-dir {state}` brings one back"""


_MODEL = "smollm2: a real 135M model, five to ten minutes. tiny: two minutes."
_Model = Annotated[Literal["smollm2", "tiny"], typer.Option(help=_MODEL)]
_STATE = "State of the stack. Default: .reef/demo-MODEL"
_StateDir = Annotated[Path | None, typer.Option(help=_STATE)]
_FRESH = "Begin anew, or go on with the last run's state."
_Fresh = Annotated[bool, typer.Option("--fresh/--continue", help=_FRESH)]
_SEED = "Of the users' questions and of all answers; --continue draws a new one from it."
_Seed = Annotated[int, typer.Option(help=_SEED)]
_PERMUTED = (
    "The control: each answer gets the reward of another, so that there is nothing to learn."
)
_Permuted = Annotated[bool, typer.Option("--permuted", help=_PERMUTED)]

_MINUTES = "Stop after so many minutes of the loop. Default: smollm2 15, tiny 5."
_Minutes = Annotated[float | None, typer.Option(help=_MINUTES, min=0.1)]


def demo(
    model: _Model = "smollm2",
    state_dir: _StateDir = None,
    fresh: _Fresh = True,
    seed: _Seed = 0,
    permuted: _Permuted = False,
    minutes: _Minutes = None,
    as_json: AsJson = False,
) -> None:
    """See the whole loop: users ask, their rewards train a LoRA, and winners serve at once.

    Everything runs on this machine; nothing is downloaded. The state directory keeps the run:
    demo.log, demo.json, reward.png.

    Examples:

      reef demo

      reef demo --model tiny --json
    """
    preset = PRESETS[model]
    if minutes is not None:
        preset = replace(preset, deadline_s=60 * minutes)
    if not fresh:
        seed = independent_seed(seed, time_ns())  # the last run's draws are not drawn again
    state_dir = state_dir or Path(".reef") / f"demo-{model}{'-permuted' if permuted else ''}"
    run = Demo(preset, state_dir, seed, Console(stderr=as_json), permuted)
    failure = _run(run, fresh=fresh)
    summary = _summary(run)
    # Without a release there is no curve to draw.
    shown = not failure and bool(run.figures.learned and run.figures.heldout)
    result = _told(run, summary) if shown else failure.splitlines()
    report.keep(run.state_dir, [*run.view.lines, *result], summary)
    plain: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
    if not shown:
        words = failure or "Stopped before the first release from training."
        run.console.print(words, style="red" if failure else None, **plain)
        raise typer.Exit(1)
    png = report.draw_png(run.figures, preset, run.state_dir / "reward.png")
    report.show(run.console, run.figures, preset, summary)
    kept = f"Kept: {png}, demo.log and demo.json beside it\n\n{_next_steps(run)}"
    run.console.print(kept, **plain)
    if as_json:
        sys.stdout.write(json.dumps(summary) + "\n")
    raise typer.Exit(0 if run.reached else 1)


def _run(run: Demo, *, fresh: bool) -> str:
    """Run the loop. Returns why it failed; "" if it did not."""
    # Ctrl-C ends the run early: the figures so far are shown.
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(run.view) as view:
        view.say(run.preset.about)
        view.say(_goal(run.preset))
        try:
            if fresh and _forget(run.state_dir):
                view.say(f"removed the last run from {run.state_dir} (--continue keeps it)")
            asyncio.run(run.run())
        except (CannotStart, StackFailed, BadConfig) as error:
            run.stopped = "failure"
            return str(error)
    return ""


def _goal(preset: Preset) -> str:
    return (
        f"goal: {preset.releases_goal} releases, and a held-out reward whose 95 % interval "
        f"lies above {preset.reward_goal}, within {preset.deadline_s / 60:g} min (--minutes); "
        "lag = releases behind the head"
    )


def _summary(run: Demo) -> dict[str, Any]:
    preset = run.preset
    found = run.figures.summary(model=preset.model, elapsed_s=run.elapsed_s, reached=run.reached)
    return {
        **found,
        "stopped_by": run.stopped,
        "limit_s": preset.deadline_s,
        "goal": {"releases": preset.releases_goal, "lower_bound_above": preset.reward_goal},
        "improved": run.figures.improved,
        "seed": run.seed,
        "rewards_permuted": run.permuted,
        "recipe": [binding.recipe for binding in serve_config.load(preset.config).reef],
        "question": as_messages(preset.test_tasks[0])[-1]["content"],
        "command": shlex.join(sys.argv),
        "version": version("reef-agent"),
    }


def _told(run: Demo, summary: dict[str, Any]) -> list[str]:
    """The result as lines, for the log."""
    text = io.StringIO()
    report.show(Console(file=text, width=100), run.figures, run.preset, summary)
    return text.getvalue().splitlines()


def _next_steps(run: Demo) -> str:
    question = as_messages(run.preset.test_tasks[0])[-1]["content"]
    first = run.figures.releases[0].release.release_id
    before, after = (
        curl.chat("http://127.0.0.1:8900", "reef", question, release_id=release_id)
        for release_id in (first, "")
    )
    config = run.preset.config
    shown = config.relative_to(Path.cwd()) if config.is_relative_to(Path.cwd()) else config
    what = (
        "the improved model"
        if run.figures.improved
        else "the model, which this run has not surely improved,"
    )
    names = {"what": what, "state": run.state_dir, "config": shown, "reef": program()}
    return NEXT_STEPS.format(**names, before=before, after=after)


def _forget(state: Path) -> bool:
    """Remove an earlier demonstration's state. False if it did not exist.

    Raises:
        typer.BadParameter: the directory holds other things, or is a file.
    """
    if reason := why_no_directory(state):
        raise typer.BadParameter(reason, param_hint="--state-dir")
    if not state.exists():
        return False
    if any(state.iterdir()) and not (state / "secrets.json").is_file():
        reason = f"{state} holds something that is not Reef's state; choose another directory"
        raise typer.BadParameter(reason, param_hint="--state-dir")
    with locked(state):  # fails if a stack runs there
        pass
    shutil.rmtree(state)
    return True
