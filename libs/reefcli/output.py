"""Output of the commands: JSON on request, tables on a terminal, tabs in a pipe."""

from collections.abc import Collection, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

_NARROWEST = 12  # columns: narrower than this, words fall apart
_LABEL = 12
Cell = str | int | float | bool | None


def console(*, err: bool = False) -> Console:
    # A new one each time: a test may have replaced the streams. `package.module:X:` is no emoji.
    return Console(stderr=err, highlight=False, emoji=False)


def print_json(value: Any) -> None:
    """Print a JSON document: indented on a terminal, on a single line in a pipe."""
    option = orjson.OPT_NON_STR_KEYS | (orjson.OPT_INDENT_2 if console().is_terminal else 0)
    typer.echo(orjson.dumps(value, option=option, default=str).decode())


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    whole: Collection[str] = (),
    empty: str = "nothing yet",
) -> None:
    """Print a table; `empty` if there are no rows.

    The first column and those in `whole` are for copying: never folded or cut. If the others cannot
    become narrow enough, each row is a block of lines.
    """
    out, cells = console(), [[_shown(cell) for cell in row] for row in rows]
    if not out.is_terminal:
        for line in [list(columns), *cells] if cells else [[f"({empty})"]]:
            typer.echo("\t".join(line))  # not through rich, which turns tabs into spaces
        return
    if not cells:
        out.print(f"[dim]{empty}[/dim]")
        return
    table = Table(header_style="bold", box=None, pad_edge=False)
    least = 2 * (len(columns) - 1)  # two spaces between columns
    for number, (name, *texts) in enumerate(zip(columns, *cells, strict=True)):
        width = max(cell_len(part) for text in (name, *texts) for part in text.split("\n"))
        rigid = number == 0 or name in whole
        least += width if rigid else min(width, _NARROWEST)
        # Ids are cut, sentences go over several lines.
        words = any(" " in text for text in texts)
        table.add_column(name, no_wrap=rigid, overflow="fold" if words else "ellipsis")
    if least > out.width:
        for line in cells:
            _print_block(out, columns, line)
        return
    for line in cells:
        table.add_row(*(Text(cell) for cell in line))
    out.print(table)


def _print_block(out: Console, columns: Sequence[str], line: Sequence[str]) -> None:
    out.print(Text(line[0], style="bold"), soft_wrap=True)
    for name, cell in zip(columns[1:], line[1:], strict=True):
        if cell:
            out.print(Text.assemble((f"  {name:<{_LABEL}} ", "dim"), cell), soft_wrap=True)


def print_story(lines: Iterable[tuple[str, str]]) -> None:
    for label, text in lines:
        typer.echo(
            typer.style(f"{label:<13}", dim=True) + printable(text).replace("\n", "\n" + " " * 13)
        )


def printable(text: str) -> str:
    """The text without control characters, which could move the cursor; line ends stay."""
    return "".join(char for char in text if char.isprintable() or char == "\n")


def print_asked(url: str, text: str = "") -> None:
    """Print a text, and on a terminal the source below it, or below a table."""
    if text:
        console().print(text, markup=False, soft_wrap=True)
    if (out := console()).is_terminal:
        out.print(f"from {url}", style="dim", markup=False, soft_wrap=True)


def counted(number: int, single: str) -> str:
    """`1 win`, `2 wins`."""
    return f"{number} {single}{'' if number == 1 else 's'}"


def compared(scores: Sequence[float]) -> list[str]:
    """Return figures with the digits that tell them apart, three decimals at least."""
    # Two scores that differ must not look equal.
    for digits in range(3, 10):
        shown = [f"{score:.{digits}f}" for score in scores]
        if len(set(shown)) == len(set(scores)):
            return shown
    return [f"{score:.3f}" for score in scores]


def ago(at: Any) -> str:
    """Return the age of an ISO time (or Unix seconds) in words; other text as it is."""
    try:
        number = isinstance(at, int | float)
        moment = datetime.fromtimestamp(at, UTC) if number else datetime.fromisoformat(str(at))
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
    if isinstance(cell, float):
        return f"{cell:.0f}" if 1000 <= abs(cell) < 1e15 else f"{cell:.4g}"
    return str(cell)
