"""The spool's files, blocking: each instance has a SQLite database.

<root>/<slot>/lock            held by the instance; the kernel drops it with the process
<root>/<slot>/spool.db        the events that wait, in order
<root>/<slot>/quarantine/…    a damaged database
"""

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog

from reefcommon.files import lock, sync_directory
from reefkit.sqlite_file import check, is_damage
from services.gateway import metrics
from services.gateway.domain.log_event import LogEvent
from services.gateway.log import old_segments

log = structlog.get_logger()

ROW_BYTES = 128  # what a row takes beside its event
PORTION_BYTES = 1024 * 1024
CHECKPOINT_PAGES = 256  # 1 MiB of log beside the database
_SCHEMA = """
create table if not exists events (
    id integer primary key autoincrement, topic text not null, shard text not null,
    event_id text not null, data blob not null, at real not null, traceparent text not null
)
"""
_INSERT = "insert into events values (null, ?, ?, ?, ?, ?, ?)"  # the fields of LogEvent
_OLDEST = "select * from events where id > ? order by id limit ?"
_FORGET = "delete from events where id <= ?"
_TOTALS = "select count(*), total(length(data) + ?), min(at) from events"


@dataclass(frozen=True, slots=True)
class Portion:
    """The oldest events that wait in a file; `last` is the last id."""

    file: "SpoolFile"
    database: int
    events: tuple[LogEvent, ...]
    last: int


class SpoolFile:
    """The database of a slot whose lock this process holds, for a single thread.

    If a method raises OSError, the file is as before.
    """

    def __init__(self, directory: Path, lock: int) -> None:
        self.directory = directory
        self.path = directory / "spool.db"
        self._lock = lock
        self._db: sqlite3.Connection | None = None
        self._database = 0  # how many databases were put aside
        self._relayed = 0  # ids up to here are with the broker
        self.records = 0
        self.used_bytes = 0
        self.oldest_at: float | None = None
        try:
            self._run(self._take_over)
        except BaseException:
            self.close()
            raise

    def append(self, events: Sequence[LogEvent]) -> float:
        """Write events durably in a transaction. Returns the seconds that it took."""
        started = time.perf_counter()
        self._run(lambda db: _write(db, _INSERT, events))
        self.records += len(events)
        self.used_bytes += sum(size_of(event) for event in events)
        if self.oldest_at is None:
            self.oldest_at = events[0].at
        return time.perf_counter() - started

    def read(self, limit: int) -> Portion:
        """The oldest events, at most `limit` and about PORTION_BYTES."""

        def rows(db: sqlite3.Connection) -> Portion:
            events, last, size = [], self._relayed, 0
            for number, *fields in db.execute(_OLDEST, (self._relayed, limit)):
                events.append(LogEvent(*fields))
                last, size = number, size + len(events[-1].data)
                if size >= PORTION_BYTES:
                    break
            return Portion(self, self._database, tuple(events), last)

        portion: Portion = self._run(rows)
        if portion.events:
            self.oldest_at = portion.events[0].at
        return portion

    def forget(self, portion: Portion) -> None:
        """Remove events that the broker has."""
        if portion.database != self._database:
            # They are in a database that was put aside; the ids of the present one begin anew.
            return
        self._relayed = portion.last
        self.records -= len(portion.events)
        self.used_bytes -= sum(size_of(event) for event in portion.events)
        if not self.records:
            self.oldest_at = None
        try:
            self._run(lambda db: _write(db, _FORGET, [(self._relayed,)]))
        except OSError as error:
            # A full disk must not keep the spool from being emptied. The rows go with the next
            # portion or with the file; after a crash they are sent a second time.
            log.warning("spooled_events_not_removed", file=str(self.path), reason=str(error))
        if not self.records:
            self.remove()

    def remove(self) -> None:
        """Give the disk space back. The next event makes a new database."""
        self._close()
        for path in self._files():
            path.unlink(missing_ok=True)
        self._relayed = 0

    def close(self) -> None:
        """Let another instance have the slot."""
        if self._lock >= 0:
            self._close()
            os.close(self._lock)
            self._lock = -1

    def _close(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            db.close()

    def _files(self) -> list[Path]:
        # The log last: a database without its log would be an older state of itself.
        return [self.path, *(Path(f"{self.path}-{part}") for part in ("shm", "wal"))]

    def _run(self, work: Callable[[sqlite3.Connection], Any]) -> Any:
        try:
            try:
                return work(self._opened())
            except sqlite3.DatabaseError as error:
                if not is_damage(error):
                    raise
                self._put_aside(str(error))
                return work(self._opened())
        except sqlite3.DatabaseError as error:
            raise OSError(f"{self.path}: {error}") from error

    def _opened(self) -> sqlite3.Connection:
        if self._db is not None:
            return self._db
        self._db = db = sqlite3.connect(self.path, check_same_thread=False)
        try:
            # Exclusive: no shared memory file, and no other process may look in between.
            db.execute("pragma locking_mode=exclusive")
            db.execute("pragma journal_mode=wal")
            db.execute("pragma synchronous=full")
            db.execute(f"pragma wal_autocheckpoint={CHECKPOINT_PAGES}")
            db.execute(_SCHEMA)
            check(db)  # a damaged page would else be found in the middle of a relay
        except BaseException:
            self._close()
            raise
        return db

    def _take_over(self, db: sqlite3.Connection) -> None:
        for segment in old_segments.files(self.directory):
            _write(db, _INSERT, old_segments.read(segment))
            old_segments.remove(segment)
        records, used, self.oldest_at = db.execute(_TOTALS, (ROW_BYTES,)).fetchone()
        self.records, self.used_bytes = int(records), int(used)

    def _put_aside(self, reason: str) -> None:
        self._close()
        kept = self.directory / "quarantine" / str(time.time_ns())
        kept.mkdir(parents=True)
        for path in self._files():
            if path.exists():
                path.replace(kept / path.name)
        sync_directory(self.directory)
        metrics.SPOOL_DAMAGED.inc()
        metrics.SPOOL_QUARANTINED.inc()
        log.error("spool_damaged", events=self.records, kept=str(kept), reason=reason)
        self._database += 1
        self._relayed = self.records = self.used_bytes = 0
        self.oldest_at = None


def claim(root: Path) -> SpoolFile:
    """Take the first slot that no living instance holds. Raises OSError."""
    root.mkdir(parents=True, exist_ok=True)
    number = 0
    while (descriptor := lock(root / str(number) / "lock")) is None:
        number += 1
    # A database lasts only as long as the directories that name it.
    for directory in (root.parent, root):
        sync_directory(directory)
    return SpoolFile(root / str(number), descriptor)


def adopt(root: Path, held: Sequence[SpoolFile]) -> list[SpoolFile]:
    """Take the slots with events that no living instance holds. Raises OSError."""
    adopted: list[SpoolFile] = []
    ours = {file.directory for file in held}
    for directory in sorted(root.iterdir()):
        used = (directory / "spool.db").exists() or old_segments.files(directory)
        if directory in ours or not used:
            continue
        if (descriptor := lock(directory / "lock")) is None:
            continue
        try:
            file = SpoolFile(directory, descriptor)
        except OSError as error:
            log.warning("spool_not_adopted", source=str(directory), reason=str(error))
            continue
        if file.records:
            log.warning("spool_adopted", source=str(directory), records=file.records)
            adopted.append(file)
        else:
            file.close()
    return adopted


def _write(db: sqlite3.Connection, statement: str, rows: Iterable[Sequence[Any]]) -> None:
    with db:
        db.executemany(statement, rows)


def size_of(event: LogEvent) -> int:
    """The disk space that an event takes, about."""
    return len(event.data) + ROW_BYTES
