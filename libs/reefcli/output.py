"""How commands print: JSON when asked for, rich tables on a terminal, tab-separated columns in a pipe."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

Cell = str | int | float | bool | None


def console(*, err: bool = False) -> Console:
    """The console of one command. Made when needed, so that a test's captured streams are used."""
    return Console(stderr=err, highlight=False, emoji=False)  # `package.module:X:` is no emoji


def print_json(value: Any) -> None:
    """One JSON document on stdout, indented on a terminal, on one line in a pipe."""
    option = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if console().is_terminal else 0)
    typer.echo(orjson.dumps(value, option=option, default=str).decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], *, title: str = "", empty: str = "nothing yet") -> None:
    """A table of cells; `empty` is said where there are no rows."""
    out, cells = console(), [[_shown(cell) for cell in row] for row in rows]
    if not out.is_terminal:
        for line in [list(columns), *cells] if cells else [[f"({empty})"]]:
            typer.echo("\t".join(line))  # not through rich, which turns tabs into spaces
        return
    if not cells:
        out.print(f"[dim]{empty}[/dim]")
        return
    table = Table(title=title or None, title_justify="left", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for line in cells:
        table.add_row(*line)
    out.print(table)


def print_story(lines: Iterable[tuple[str, str]]) -> None:
    """Labelled lines. What others wrote cannot move the cursor: control characters are left out."""
    for label, text in lines:
        clean = "".join(char for char in text if char.isprintable() or char == "\n")
        typer.echo(typer.style(f"{label:<13}", dim=True) + clean.replace("\n", "\n" + " " * 13))


def print_asked(url: str) -> None:
    """Below a table on a terminal: whom it comes from. Nothing in a pipe."""
    if (out := console()).is_terminal:
        out.print(f"from {url}", style="dim", markup=False, soft_wrap=True)


def ago(at: Any) -> str:
    """How long ago an ISO time (or Unix seconds) was, in words; what it says itself where it is neither."""
    try:
        moment = datetime.fromtimestamp(at, UTC) if isinstance(at, int | float) else datetime.fromisoformat(str(at))
    except ValueError:
        return str(at)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    seconds = (datetime.now(UTC) - moment).total_seconds()
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"


def _shown(cell: Cell) -> str:
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
