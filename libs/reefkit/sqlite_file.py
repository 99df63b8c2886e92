"""A service's own SQLite file that the disk has damaged: said once, in words that say what to do, by a process that then ends."""

import os
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import structlog

from reefcommon.errors import BadConfig, Unavailable

log = structlog.get_logger()

_DAMAGED = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_UNREADABLE = ("Could not decode to UTF-8", "malformed JSON")
"""What Python's module and SQLite's JSON functions say of a damaged value in a page that is whole."""


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Around opening a file and `check`. Raises BadConfig, which ends a service at its start with exit status 2, where it is damaged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if (reason := _mark(path)).is_file():
            raise BadConfig(
                _what_to_do(path, reason.read_text(encoding="utf-8", errors="replace").strip())
            )
        yield
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        raise BadConfig(_what_to_do(path, str(error))) from error


def check(db: sqlite3.Connection) -> None:
    """Raises sqlite3.DatabaseError where a page is damaged. A hundred thousand samples take 0.2 to 0.5 s; the whole check takes 2 s."""
    found = [row[0] for row in db.execute("pragma quick_check(1)")]
    if found != ["ok"]:
        error = sqlite3.DatabaseError(" ".join(found[0].split()))
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around every use of the file. Where it turns out to be damaged the process ends in order, and its next start says the same as
    `opening`; until then everything that needs the file is Unavailable, so that no event is given up for it."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        reason = _what_to_do(path, str(error))
        if not _mark(path).is_file():
            log.error("ledger_damaged", reason=reason)
            with suppress(OSError):
                _mark(path).write_text(str(error), encoding="utf-8")
            os.kill(os.getpid(), signal.SIGTERM)
        raise Unavailable(reason) from error


def _mark(path: Path) -> Path:
    """Beside the file: what was found damaged, which a quick check need not see."""
    return path.with_name(f"{path.name}-damaged")


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file is damaged; else it is full, locked, or the statement is wrong."""
    code = int(
        vars(error).get("sqlite_errorcode", sqlite3.SQLITE_OK)
    )  # absent where Python's module raised it by itself
    return code & 0xFF in _DAMAGED or str(error).startswith(_UNREADABLE)


def _what_to_do(path: Path, reason: str) -> str:
    return (
        f"{path} is damaged ({reason}). Move it and what lies beside it aside ({path}*), or put a backup in its place, and start again: "
        "without it learning goes on from the served release, and samples of open jobs are decided anew"
    )
