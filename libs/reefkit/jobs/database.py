"""The SQLite file of a job store: opening, fencing, transactions.

`fence` writes the lease's token into the file. Each write compares it, so a replaced host raises
LeaseLost.
"""

# A host on another directory starts from the served release without waiting samples. The
# lease holds back the events of the replaced host (`reefkit.jobs.outbox`).

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from reefcommon.errors import Unavailable
from reefkit.jobs.schema import create
from reefkit.redis_lease import LeaseLost
from reefkit.sqlite_file import check, is_damage, opening, reading


class Database:
    """A file of a single process. Thread-safe.

    Raises:
        BadConfig: the file is damaged when it is opened.
        Unavailable: the disk is full, or the file is damaged later.
    """

    def __init__(self, path: Path, recipes: Mapping[str, str] | None = None) -> None:
        """`recipes`: names of the bound recipes by binding, to migrate an old ledger."""
        self._path, self._lock, self._token = path, threading.Lock(), 0
        with opening(path):
            self._db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            for setting in ("journal_mode = wal", "synchronous = full", "busy_timeout = 10000"):
                self._db.execute(f"pragma {setting}")
            check(self._db)
            create(self._db, recipes or {})
            (self._token,) = self._db.execute("select token from fence").fetchone()

    def close(self) -> None:
        with self._lock:
            self._db.close()

    # ------------------------------------------------------------------ fencing

    @property
    def token(self) -> int:
        return self._token

    def fence(self, token: int) -> None:
        """Shut out hosts with lower tokens. Raises LeaseLost if the file has a higher token."""
        with self._lock, reading(self._path):
            moved = self._db.execute("update fence set token = ? where token <= ?", (token, token))
            if not moved.rowcount:
                raise LeaseLost(f"{self._path}: a newer host has taken over")
            self._token = token

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._lock, reading(self._path):
            yield self._db

    def _rows(self, query: str, *values: object) -> list[Any]:
        with self._reading() as db:
            return db.execute(query, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, reading(self._path):
            try:
                self._db.execute("begin immediate")
                if self._db.execute("select token from fence").fetchone() != (self._token,):
                    raise LeaseLost(f"{self._path}: a newer host has taken over")
                yield self._db
                self._db.execute("commit")
            except BaseException as error:
                if self._db.in_transaction:
                    self._db.execute("rollback")
                if isinstance(error, sqlite3.OperationalError) and not is_damage(error):
                    why = f"cannot be written: {error}; is the disk full?"
                    raise Unavailable(f"{self._path} {why}") from error
                raise
