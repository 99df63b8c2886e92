"""A service's SQLite file: named and refused if the disk has damaged it."""

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
"""Messages of Python's module and of SQLite's JSON functions for a damaged value."""


@contextmanager
def opening(path: Path) -> Iterator[None]:
    """Guard the opening of a file. Raises BadConfig if it is damaged."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if (reason := _mark(path)).is_file():
            text = reason.read_text(encoding="utf-8", errors="replace")
            raise BadConfig(_what_to_do(path, text.strip()))
        yield
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        raise BadConfig(_what_to_do(path, str(error))) from error


def check(db: sqlite3.Connection) -> None:
    """Check all pages (0.5 s for 100,000 samples). Raises sqlite3.DatabaseError for damage."""
    found = [row[0] for row in db.execute("pragma quick_check(1)")]
    if found != ["ok"]:
        error = sqlite3.DatabaseError(" ".join(found[0].split()))
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Guard a use of the file.

    If it is damaged the process stops in order, and each use raises Unavailable until then.
    """
    try:
        yield
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        # Unavailable, so that no event becomes a dead letter. The next start raises BadConfig.
        reason = _what_to_do(path, str(error))
        if not _mark(path).is_file():
            log.error("ledger_damaged", reason=reason)
            with suppress(OSError):
                _mark(path).write_text(str(error), encoding="utf-8")
            os.kill(os.getpid(), signal.SIGTERM)
        raise Unavailable(reason) from error


def _mark(path: Path) -> Path:
    # Holds the reason for the next start: a quick check does not find every damage.
    return path.with_name(f"{path.name}-damaged")


def is_damage(error: sqlite3.DatabaseError) -> bool:
    """Return whether an error means damage, not a full disk, a lock or a wrong statement."""
    # The code is absent if Python's module raised the error by itself.
    code = int(vars(error).get("sqlite_errorcode", sqlite3.SQLITE_OK))
    return code & 0xFF in _DAMAGED or str(error).startswith(_UNREADABLE)


def _what_to_do(path: Path, reason: str) -> str:
    return (
        f"{path} is damaged ({reason}). Move {path}* aside, or put a backup in its place, and start"
        " again: without it learning goes on from the served release, and samples of open jobs are"
        " decided anew"
    )
