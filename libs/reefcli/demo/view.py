"""The live screen of the demonstration. On a terminal one screen that is redrawn; in a pipe one line for each thing that happens."""

import time
from collections import deque
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from reefcli.demo.presets import Preset
from reefcli.demo.progress import Progress
from reefcli.demo.watch import Seen
from reefcli.output import compared, counted
from reefcommon.events import (
    CandidateEvaluated,
    CandidateProposed,
    Evaluation,
    ReleasePending,
    ReleasePublished,
    ReleaseRejected,
    SampleRefused,
    ServingSynced,
    StepCompleted,
)

SPARKS = "▁▂▃▄▅▆▇█"


class View(Protocol):
    """Where the demonstration tells what happens."""

    def say(self, text: str) -> None:
        """One line that matters."""

    def refresh(self) -> None:
        """The figures may have changed."""

    def __enter__(self) -> Self:
        """Begin to show."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave the terminal as it was."""


def describe(event: Seen) -> str | None:
    """One line for one event; None where it is not worth a line."""
    match event:
        case StepCompleted():
            reward, lag = event.metrics.get("reward_mean"), event.metrics.get("lag_mean", 0.0)
            clip = event.metrics.get("clipfrac")
            shown = "" if reward is None else f" reward {reward:.2f},"
            masked = "" if clip is None else f" masked {clip:.0%},"
            kind = "candidate" if event.candidate_id else "critic warm-up"
            return f"step {event.step:<3} {len(event.sample_ids)} samples,{shown} lag {lag:.1f},{masked} {event.duration_s:.1f} s: {kind}"
        case CandidateEvaluated():
            e = event.evaluation
            return f"verdict  {e.verdict}: {_why(e)} ({e.policy}, {e.duration_s:.1f} s)"
        case ReleasePublished():
            return f"release  {event.release.release_id} ({event.release.operation}) serves from now on"
        case ReleasePending():
            return f"release  {event.release.release_id} waits for `reef promote`"
        case ReleaseRejected():
            return f"nothing published: {event.outcome}, {event.reason}"
        case ServingSynced() | CandidateProposed() | SampleRefused():
            return None


def _why(e: Evaluation) -> str:
    """By what rule a candidate was chosen, or not: tasks won and lost decide, the means only tell how far apart they are."""
    if e.candidate_score is None or e.head_score is None:
        return e.reason
    means = " against ".join(compared((e.candidate_score, e.head_score)))
    law = e.reason if e.policy == "always" else e.reason.partition("; ")[2] or e.reason
    return f"{counted(e.wins, 'task')} won, {e.losses} lost, {e.ties} tied (means {means}); rule: {law}"


class PlainView:
    """Lines on a console that is not a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.monotonic()

    def say(self, text: str) -> None:
        """Print it with the time since the start."""
        self._console.print(
            f"[{time.monotonic() - self._start:6.1f} s] {text}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )

    def refresh(self) -> None:
        """Nothing: lines stay as they are."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


class LiveView:
    """One screen: the goal as bars, what the users get, the last events, the curve."""

    def __init__(self, console: Console, preset: Preset, progress: Progress) -> None:
        self._preset, self._progress = preset, progress
        self._lines: deque[str] = deque(maxlen=max(console.height - 10, 4))
        self._start = time.monotonic()
        self._live = Live(self._draw(), console=console, refresh_per_second=4, screen=True)

    def say(self, text: str) -> None:
        """Add a line to the events."""
        self._lines.append(f"{time.monotonic() - self._start:6.1f} s  {text}")
        self.refresh()

    def refresh(self) -> None:
        """Draw it again."""
        self._live.update(self._draw())

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.refresh()
        self._live.__exit__(kind, error, trace)

    def _draw(self) -> Panel:
        progress, preset = self._progress, self._preset
        heldout = progress.heldout[-1][2] if progress.heldout else None
        measured = "not measured yet" if heldout is None else f"{heldout:.2f}"
        goals = Table.grid(padding=(0, 2))
        goals.add_row(
            "held-out reward",
            ProgressBar(total=1.0, completed=heldout or 0.0, width=40),
            f"{measured} (goal {preset.reward_goal:.2f})",
        )
        goals.add_row(
            "releases",
            ProgressBar(
                total=preset.releases_goal,
                completed=min(len(progress.learned), preset.releases_goal),
                width=40,
            ),
            f"{len(progress.learned)} (goal {preset.releases_goal})",
        )
        recent = "-" if progress.recent_reward is None else f"{progress.recent_reward:.2f}"
        facts = (
            f"requests {len(progress.rewards)}   failed {len(progress.failures)}   restarts {len(progress.restarts)}   "
            f"users' reward (last 32) {recent}   steps {len(progress.steps)}   rejected {len(progress.rejected)}   "
            f"refused {sum(progress.refused.values())}   max lag {progress.max_lag}"
        )
        curve = "".join(SPARKS[min(int(value * 8), 7)] for _, _, value in progress.heldout)
        body = Group(
            goals,
            Text(facts),
            Text(f"held-out curve  {curve}"),
            Text(),
            Text("\n".join(self._lines)),
        )
        return Panel(
            body, title=f"reef demo: {preset.about}", subtitle="Ctrl-C stops; state is kept"
        )
