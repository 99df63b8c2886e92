"""Events on this machine's disk, in order, until the broker has acknowledged them.

append --queue--> one transaction for all that wait --> acknowledged
read   --oldest first--> the broker --> acknowledge --> removed
"""

import asyncio
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import structlog

from services.gateway import metrics
from services.gateway.domain.log_event import LogEvent
from services.gateway.log import spool_file
from services.gateway.log.spool_file import Portion, SpoolFile, size_of
from services.gateway.ports import NotDurable

log = structlog.get_logger()

REFUSE_AFTER_FAILURE_S = 1.0
MAX_FLOOR_BYTES = 64 * 1024 * 1024
_Result = TypeVar("_Result")


class SpoolFull(NotDurable):
    """The spool has no room, or its disk failed: the event was not kept."""


class Spool:
    """An instance's own file, and files of dead instances until they are empty.

    It refuses new requests (`refusal`) at 7/8 of the budget. The last eighth is reserved for
    requests in flight. A thread of its own does the I/O.
    """

    def __init__(self, root: Path, *, budget_bytes: int) -> None:
        self._root = root
        self._budget = budget_bytes
        self._reserve = budget_bytes // 8
        self._thread = ThreadPoolExecutor(1, "spool")
        self._own: SpoolFile | None = None
        self._files: list[SpoolFile] = []  # its own is the last
        self._queue: list[tuple[LogEvent, asyncio.Future[None]]] = []
        self._unwritten = 0
        self._writing: asyncio.Task[None] | None = None
        self._writing_since = 0.0
        self._refused_until = 0.0
        self._refused_reason = ""
        self._disk_checked = 0.0

    async def open(self) -> None:
        """Take a directory and the events in it. Raises OSError."""
        self._own = await self._in_thread(spool_file.claim, self._root)
        self._files = [self._own]
        await self.adopt()
        if self.records:
            log.info(
                "spool_recovered",
                directory=self.directory,
                records=self.records,
                bytes=self.used_bytes,
            )

    async def adopt(self) -> int:
        """Take over the files of dead instances; return how many events. Raises OSError."""
        if self._own is None:
            return 0
        adopted = await self._in_thread(spool_file.adopt, self._root, list(self._files))
        self._files[-1:-1] = adopted
        return sum(file.records for file in adopted)

    async def _in_thread(self, work: Callable[..., _Result], *arguments: Any) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    @property
    def directory(self) -> str:
        """The directory of this instance."""
        return str(self._own.directory if self._own is not None else self._root)

    @property
    def records(self) -> int:
        return sum(file.records for file in self._files)

    @property
    def used_bytes(self) -> int:
        """Disk space in use, about."""
        return sum(file.used_bytes for file in self._files)

    @property
    def backlog_bytes(self) -> int:
        """Bytes that wait for the broker, or for the disk."""
        return self.used_bytes + self._unwritten

    @property
    def idle(self) -> bool:
        """True if no event waits and none is being written."""
        return self._writing is None and not self.records

    @property
    def oldest_at(self) -> float | None:
        """When the oldest event that waits was made; None if none waits."""
        times = [file.oldest_at for file in self._files if file.oldest_at is not None]
        if self._writing is not None:
            times.append(self._writing_since)
        return min(times, default=None)

    def age_s(self) -> float:
        oldest_at = self.oldest_at
        return max(0.0, time.time() - oldest_at) if oldest_at is not None else 0.0

    def refusal(self) -> str | None:
        """The reason to refuse new requests; None if there is room."""
        if self.backlog_bytes > self._budget - self._reserve:
            return (
                f"the spool holds {self.used_bytes} of {self._budget} bytes"
                " and the broker does not take them"
            )
        now = time.monotonic()
        if now >= self._refused_until and now - self._disk_checked > REFUSE_AFTER_FAILURE_S:
            self._disk_checked = now
            # Refused before the disk is full: requests in flight need room for their events.
            free = shutil.disk_usage(self._root).free
            if free < min(self._reserve, MAX_FLOOR_BYTES):
                self._refuse(f"the disk of the spool has {free} bytes left")
        return self._refused_reason if now < self._refused_until else None

    def _refuse(self, reason: str) -> None:
        self._refused_until = time.monotonic() + REFUSE_AFTER_FAILURE_S
        self._refused_reason = reason

    async def append(self, event: LogEvent) -> None:
        """Return when the event is on the disk. Raises SpoolFull."""
        if self._own is None or self.backlog_bytes + size_of(event) > self._budget:
            raise SpoolFull(f"the spool holds {self.used_bytes} of {self._budget} bytes")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._queue.append((event, done))
        self._unwritten += size_of(event)
        if self._writing is None:
            self._writing_since = event.at
            self._writing = loop.create_task(self._write(self._own))
        await done

    async def _write(self, file: SpoolFile) -> None:
        # Group commit: the events that arrive during a transaction make the next transaction.
        try:
            while self._queue:
                queue, self._queue = self._queue, []
                events = [event for event, _ in queue]
                self._writing_since = events[0].at
                error = await self._commit(file, events)
                for _, done in queue:
                    if done.done():
                        continue
                    if error is None:
                        done.set_result(None)
                    else:
                        done.set_exception(SpoolFull(error))
        finally:
            self._writing = None

    async def _commit(self, file: SpoolFile, events: list[LogEvent]) -> str | None:
        try:
            sync_s = await self._in_thread(file.append, events)
        except OSError as failed:
            log.error("spool_write_failed", events=len(events), reason=str(failed))
            error = f"the disk of the spool refused {len(events)} events: {failed}"
            self._refuse(error)
            return error
        finally:
            self._unwritten -= sum(map(size_of, events))
        metrics.SPOOL_APPENDED.inc(len(events))
        metrics.SPOOL_SYNC.observe(sync_s)
        return None

    async def flushed(self) -> None:
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def read(self, limit: int) -> Portion | None:
        """The oldest events that wait, at most `limit`; None if none waits. Raises OSError."""
        for file in self._files:
            if file.records:
                portion: Portion = await self._in_thread(file.read, limit)
                return portion
        return None

    async def acknowledge(self, portion: Portion) -> None:
        """Remove events that the broker has. Raises OSError."""
        await self._in_thread(portion.file.forget, portion)
        metrics.SPOOL_RELAYED.inc(len(portion.events))
        if portion.file is not self._own and not portion.file.records:
            self._files.remove(portion.file)
            await self._in_thread(portion.file.close)

    async def close(self) -> None:
        """Finish writing, and let other instances have the files."""
        await self.flushed()
        for file in self._files:
            await self._in_thread(file.close)
        self._own, self._files = None, []
        self._thread.shutdown()
