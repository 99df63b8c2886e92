"""A run of a demonstration, from its state directory to its report."""

import asyncio
import contextlib
import io
import shlex
import shutil
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import openai
import typer
from rich.console import Console

from reefcli import curl
from reefcli.demo import report
from reefcli.demo.run import Demo
from reefcli.options import program
from reefcli.output import counted
from reefcommon import config as serve_config
from reefcommon.demonstration import as_messages
from reefcommon.errors import BadConfig
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

# A scripted model ends with its run: another one serves what was learned, and answers otherwise.
NEXT_STEPS_SCRIPTED = """What to try next (the harness is in {state}; --continue goes on with it):
  {reef} serve -c {config} --state-dir {state}
      serves it to the model that the file names, which answers in its own way. In another terminal:
  {reef} harness show --state-dir {state}
      the entries that serve
  {reef} releases default --state-dir {state}
      the chain; `{reef} rollback default RELEASE_ID --state-dir {state}` brings one back"""


@dataclass(frozen=True, slots=True)
class Attempt:
    """The end of a run. `failure` is empty if it ran."""

    run: Demo
    summary: dict[str, Any]
    failure: str

    @property
    def shown(self) -> bool:
        """Whether there is a curve: without a release there is none."""
        return not self.failure and bool(self.run.figures.learned and self.run.figures.heldout)


def carry_out(run: Demo, *, fresh: bool) -> Attempt:
    """Run a demonstration, keep its log and figures, and print its report. Blocks."""
    failure = _run(run, fresh=fresh)
    attempt = Attempt(run, _summary(run), failure)
    result = _told(attempt) if attempt.shown else failure.splitlines()
    report.keep(run.state_dir, [*run.view.lines, *result], attempt.summary)
    plain: dict[str, Any] = {"markup": False, "highlight": False, "soft_wrap": True}
    if not attempt.shown:
        words = failure or _without_release(run)
        run.console.print(words, style="red" if failure else None, **plain)
        return attempt
    png = report.draw_png(run.figures, run.demonstration, run.state_dir / "reward.png")
    more = run.demonstration.files()
    for name, content in more.items():
        (run.state_dir / name).write_bytes(content)
    report.show(run.console, run.figures, run.demonstration, attempt.summary)
    run.console.print(f"Kept: {', '.join([str(png), *more])}, demo.log and demo.json\n", **plain)
    return attempt


def _without_release(run: Demo) -> str:
    limit = f"At its limit, {run.demonstration.minutes:g} min after its start-up (--minutes)"
    found = run.figures
    return (
        f"{limit if run.stopped == 'limit' else 'Stopped'} before the first release from training: "
        f"{counted(found.experienced, 'judged answer')}, {counted(len(found.steps), 'step')}, "
        f"{counted(len(found.rejected), 'rejected candidate')}{report.busy()}."
    )


def _run(run: Demo, *, fresh: bool) -> str:
    """Run the loop. Returns why it failed; "" if it did not."""
    failure = ""
    # Ctrl-C ends the run early: the figures so far are shown.
    with contextlib.suppress(KeyboardInterrupt), contextlib.closing(run.view) as view:
        view.say(run.demonstration.about)
        view.say(_goal(run))
        try:
            if fresh and forget(run.state_dir):
                view.say(f"removed the last run from {run.state_dir} (--continue keeps it)")
            asyncio.run(run.run())
        # in a group: the users and the measurements are its tasks
        except* (CannotStart, StackFailed, BadConfig) as errors:
            failure = str(_first(errors))
        except* (openai.OpenAIError, httpx.HTTPError) as errors:
            failure = (
                f"a question of the demonstration has no answer: {_first(errors)}{report.busy()}.\n"
                f"{run.state_dir / 'logs'} may say why; --continue goes on with this run's state."
            )
    run.stopped = "failure" if failure else run.stopped
    return failure


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _goal(run: Demo) -> str:
    wanted = run.demonstration
    releases = counted(wanted.releases_goal, "release")
    return (
        f"goal: {releases}, and a {wanted.figure} whose 95 % interval "
        f"lies above {wanted.goal}, within {wanted.minutes:g} min after the start-up (--minutes); "
        "lag = releases behind the head"
    )


def _summary(run: Demo) -> dict[str, Any]:
    shown = run.demonstration
    found = run.figures.summary(model=shown.model, elapsed_s=run.elapsed_s, reached=run.reached)
    questions = [as_messages(task)[-1]["content"] for task in shown.test_tasks[:1]]
    return {
        **found,
        "stopped_by": run.stopped,
        "limit_s": 60 * shown.minutes,
        "goal": {"releases": shown.releases_goal, "lower_bound_above": shown.goal},
        "improved": run.figures.improved,
        "arm": run.arm.name,
        "knobs": dict(run.arm.knobs),
        "seed": run.seed,
        "figure": shown.figure,
        "rewards_permuted": run.arm.name == "permuted",
        "recipe": [binding.recipe for binding in serve_config.load(shown.config).reef],
        "question": "".join(questions),
        "command": shlex.join(sys.argv),
        "version": version("reef-agent"),
    }


def _told(attempt: Attempt) -> list[str]:
    """The result as lines, for the log."""
    text = io.StringIO()
    console, run = Console(file=text, width=100), attempt.run
    report.show(console, run.figures, run.demonstration, attempt.summary)
    return text.getvalue().splitlines()


def next_steps(attempt: Attempt) -> str:
    run, question = attempt.run, attempt.summary["question"]
    first = run.figures.releases[0].release.release_id
    before, after = (
        curl.chat("http://127.0.0.1:8900", "reef", question, release_id=release_id)
        for release_id in (first, "")
    )
    config = run.demonstration.config
    shown = config.relative_to(Path.cwd()) if config.is_relative_to(Path.cwd()) else config
    what = (
        "the improved model"
        if run.figures.improved
        else "the model, which this run has not surely improved,"
    )
    names = {"what": what, "state": run.state_dir, "config": shown, "reef": program()}
    if run.scripted:
        return NEXT_STEPS_SCRIPTED.format(**names)
    return NEXT_STEPS.format(**names, before=before, after=after)


def forget(state: Path) -> bool:
    """Remove an earlier demonstration's state. False if it did not exist.

    Raises:
        typer.BadParameter: the directory holds other things, or is a file.
    """
    if reason := why_no_directory(state):
        raise typer.BadParameter(reason, param_hint="--state-dir")
    if not state.exists():
        return False
    # A run that failed early leaves its log alone.
    ours = any((state / name).is_file() for name in ("secrets.json", "demo.json"))
    if any(state.iterdir()) and not ours:
        reason = f"{state} holds something that is not Reef's state; choose another directory"
        raise typer.BadParameter(reason, param_hint="--state-dir")
    with locked(state):  # fails if a stack runs there
        pass
    shutil.rmtree(state)
    return True
