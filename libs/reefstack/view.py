"""The display of a run: a live table, plain lines, or JSON lines."""

import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Self

import orjson
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from reefstack.restart_policy import StackEvent

_SYMBOL = {
    "ready": ("✓", "green"),
    "died": ("✗", "red"),
    "stopped": ("■", "dim"),
    "stopping": ("…", "yellow"),
    "planned": ("·", "dim"),
}
_AWAITED = {"planned": "not started yet", "starting": "starting", "restarting": "starting again"}


class PlainView:
    """A line for each event with the seconds since the start; progress in steps of a quarter.

    A view is a context manager around the start, and is called with each event. During the start
    it says what is still awaited, `every_s` after its last line.
    """

    def __init__(self, console: Console, *, every_s: float = 10.0) -> None:
        self._console = console
        self._began = self._printed_at = time.monotonic()
        self._every_s = every_s
        self._quarter: dict[str, int] = {}
        self._awaited: dict[str, str] = {}
        self._over = threading.Event()

    def __enter__(self) -> Self:
        threading.Thread(target=self._remind, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def __call__(self, event: StackEvent) -> None:
        self._note(event)
        if event.kind == "progress":
            quarter = int(event.fraction * 4)
            if self._quarter.get(event.name) == quarter:
                return
            self._quarter[event.name] = quarter
            self._line(event.name, f"{event.fraction:.0%} {event.text}")
        elif event.kind not in ("waiting", "planned"):
            kind = "" if event.kind == "note" else f"{event.kind} "
            self._line(event.name, f"{kind}{event.text}".rstrip())

    def _note(self, event: StackEvent) -> None:
        if event.kind in (*_AWAITED, "waiting", "progress"):
            words = event.text.partition("\n")[0] or _AWAITED.get(event.kind, event.kind)
            self._awaited[event.name] = words
        elif event.kind != "note":
            self._awaited.pop(event.name, None)

    def _remind(self) -> None:
        # a thread of its own: the start may keep the event loop busy
        while not self._over.wait(self._every_s / 4):
            waits = [f"{name} ({words})" for name, words in [*self._awaited.items()]]
            if waits and time.monotonic() - self._printed_at >= self._every_s:
                self._line("still", f"awaited: {', '.join(waits)}")

    def _line(self, name: str, text: str) -> None:
        self._printed_at = time.monotonic()
        self._print(f"{self._printed_at - self._began:7.1f}s  {name:<11} {text}")

    def _print(self, line: str) -> None:
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)


class JsonView(PlainView):
    """A JSON object for each event."""

    def __enter__(self) -> Self:
        return self

    def __call__(self, event: StackEvent) -> None:
        self._print(orjson.dumps(asdict(event)).decode())


@dataclass(slots=True)
class _Row:
    kind: str = "planned"
    text: str = ""
    fraction: float = 0.0
    began: float = field(default_factory=time.monotonic)
    took: float | None = None


class LiveView(PlainView):
    """A table that fills during the start. Events after the start are lines below it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._rows: dict[str, _Row] = {}
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(console=console, refresh_per_second=8, get_renderable=self.render)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def __call__(self, event: StackEvent) -> None:
        if not self._live.is_started or event.kind == "note":  # printed above the table
            super().__call__(event)
            return
        row = self._rows.setdefault(event.name, _Row())
        if event.kind in ("starting", "restarting") and row.kind != "progress":
            row.began, row.took = time.monotonic(), None
        if event.kind == "ready":
            row.took = time.monotonic() - row.began
        row.kind, row.text, row.fraction = event.kind, event.text, event.fraction

    def render(self) -> RenderableType:
        """The table as it is now."""
        table = Table.grid(padding=(0, 1))
        for _ in range(4):
            table.add_column()
        for name, row in self._rows.items():
            table.add_row(self._mark(row), Text(name, style="bold"), *self._cells(row))
        if any(row.kind in ("stopping", "stopped") for row in self._rows.values()):
            left = sum(row.kind == "stopping" for row in self._rows.values())
            told = Text(f"stopping, in order: {left} to go", style="dim")
            return Group(table, told) if left else table
        done = sum(row.kind == "ready" for row in self._rows.values())
        total = len(self._rows)
        if not total:
            return Text()
        bar = Table.grid(padding=(0, 1))
        share = ProgressBar(total=total, completed=done, width=32)
        bar.add_row(share, Text(f"{done} of {total} ready", style="dim"))
        return Group(table, bar)

    def _mark(self, row: _Row) -> RenderableType:
        if row.kind in _SYMBOL:
            symbol, style = _SYMBOL[row.kind]
            return Text(symbol, style=style)
        return self._spinner

    def _cells(self, row: _Row) -> tuple[RenderableType, RenderableType]:
        seconds = time.monotonic() - row.began if row.took is None else row.took
        took = Text(f"{seconds:5.1f}s", style="dim")
        if row.kind == "progress":
            line = Table.grid(padding=(0, 1))
            share = ProgressBar(total=1.0, completed=row.fraction, width=24)
            line.add_row(share, Text(row.text[:60]))
            return took, line
        if row.kind == "planned":
            return Text(""), Text(_AWAITED["planned"], style="dim")
        shown = row.text if row.kind in ("ready", "died", "waiting") else row.kind
        first = shown.partition("\n")[0][:90]
        return took, Text(first, style="red" if row.kind == "died" else "")


def view_for(console: Console, *, as_json: bool = False) -> PlainView:
    """The view that suits where the output goes."""
    if as_json:
        return JsonView(console)
    return LiveView(console) if console.is_terminal else PlainView(console)
