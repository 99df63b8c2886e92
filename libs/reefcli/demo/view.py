"""The screen of the demonstration."""

import time

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from reefcli.demo.figures import Figures
from reefcommon.demonstration import Demonstration

SPARKS = "▁▂▃▄▅▆▇█"
_BAR = 32
_STATUS_EVERY_S = 15.0
_SAME_EVERY_S = 60.0


class View:
    """Prints lines, and keeps them for the log.

    A terminal has a panel with `status` below the lines. A pipe gets a changed `status` as a line,
    at most every 15 s, and an unchanged one after a minute.
    """

    def __init__(self, console: Console, demonstration: Demonstration, figures: Figures) -> None:
        self._console, self._demonstration, self._figures = console, demonstration, figures
        self._began = time.monotonic()
        self._status, self._printed_at = "", 0.0
        self.loop_began = 0.0
        self._live = Live(console=console, refresh_per_second=4, get_renderable=self.panel)
        self.lines: list[str] = []

    def say(self, text: str, *, short: str = "") -> None:
        """Print a line with the seconds since the start. `short`: for the screen alone."""
        began = f"[{time.monotonic() - self._began:6.1f} s] "
        self.lines.append(began + text)
        line = began + (short or text)
        self._printed_at = time.monotonic()
        # Through the console of the panel, which stays below the line.
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def status(self, text: str) -> None:
        quiet_s = time.monotonic() - self._printed_at
        if self._console.is_terminal:  # the panel draws it
            self._status = text
        elif text and quiet_s >= (_SAME_EVERY_S if text == self._status else _STATUS_EVERY_S):
            self._status = text
            self.say(text)

    def show_panel(self) -> None:
        """Draw the panel from now on; in a pipe there is none."""
        self.loop_began = time.monotonic()
        if self._console.is_terminal:
            self._live.start()

    def close(self) -> None:
        if self._live.is_started:
            self._live.stop()

    def panel(self) -> Panel:
        """The goals as bars, the figures, and their meaning."""
        figures, shown = self._figures, self._demonstration
        last = figures.heldout[-1] if figures.heldout else None
        goal = f"goal: above {shown.goal}"
        goals = Table.grid(padding=(0, 2))
        measured = f"{last} of release {last.sequence}" if last else "not measured"
        releases, wanted, limit_s = len(figures.learned), shown.releases_goal, 60 * shown.minutes
        spent_s = time.monotonic() - self.loop_began if self.loop_began else 0.0
        within = f"{clock(spent_s)} (limit {clock(limit_s)}, --minutes)"
        for name, total, done, figure in (
            (shown.figure, shown.most, last.mean if last else 0.0, f"{measured}; {goal}"),
            ("releases", wanted, min(releases, wanted), f"{releases} (goal {wanted})"),
            ("time", limit_s, spent_s, within),
        ):
            goals.add_row(name, ProgressBar(total=total, completed=done, width=_BAR), figure)
        recent = "-" if figures.recent_reward is None else f"{figures.recent_reward:.2f}"
        counts = (
            f"requests {figures.experienced}   failed {len(figures.failures)}   "
            f"steps {len(figures.steps)}   rejected {len(figures.rejected)}   "
            f"refused {sum(figures.refused.values())}   restarts {len(figures.restarts)}"
        )
        if not shown.seeks:
            counts += f"\nusers' reward {recent} (their last 32 answers, of several releases)"
        shares = (point.mean / shown.most for point in figures.heldout)
        curve = "".join(SPARKS[min(int(share * 8), 7)] for share in shares)
        rows = (Text(line, no_wrap=True, overflow="ellipsis") for line in shown.panel())
        status = Text(self._status, style="cyan")
        words = (Text(counts), Text(f"curve {curve}"), *rows, status)
        body = Group(goals, *words)
        return Panel(body, title=f"reef demo: {shown.about}", subtitle="Ctrl-C stops")


def clock(seconds: float) -> str:
    """`4:31`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
