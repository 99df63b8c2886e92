"""The spool: events on this machine's disk, synced, in order, until the broker has acknowledged them.

append --queue--> one write and one sync for all that wait --> acknowledged
read   --oldest first--> the broker --> acknowledge --> mark moved, segments that are done removed
"""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import structlog

from services.gateway import metrics
from services.gateway.domain.segment import Scan, Spooled, encode
from services.gateway.log import segments
from services.gateway.log.segments import Appender, Segment, Slot
from services.gateway.ports import NotDurable

log = structlog.get_logger()

SEGMENT_BYTES = 16 * 1024 * 1024
SHUT_AFTER_FAILURE_S = 1.0
MAX_FLOOR_BYTES = 64 * 1024 * 1024


class SpoolFull(NotDurable):
    """The spool has no room, or its disk refused: nothing was kept."""


@dataclass(frozen=True, slots=True)
class Portion:
    """The oldest events that wait, and the place they were read from."""

    segment: Segment
    scan: Scan

    @property
    def records(self) -> tuple[Spooled, ...]:
        """In the order in which they were taken in."""
        return tuple(placed.record for placed in self.scan.placed)


class Spool:
    """One instance's spool. Everything but the files is touched by the event loop alone; writes have a thread of their own.

    New work is refused (`refusal`) an eighth before the budget is used up: what is under way needs a place when it ends.
    """

    def __init__(
        self, root: Path, *, budget_bytes: int, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self._root = root
        self._budget = budget_bytes
        self._reserve = budget_bytes // 8
        self._segment_bytes = segment_bytes
        self._thread = ThreadPoolExecutor(1, "spool")
        self._segments: list[Segment] = []
        self._queue: list[tuple[bytes, float]] = []
        self._waiters: list[asyncio.Future[None]] = []
        self._unwritten = 0
        self._writing: asyncio.Task[None] | None = None
        self._slot: Slot | None = None
        self._shut_until = 0.0
        self._shut_reason = ""
        self._looked_at = 0.0
        self._writing_since = 0.0

    async def open(self) -> None:
        """Take a directory, and recover what is in it. Raises OSError."""
        self._slot = slot = await asyncio.to_thread(segments.claim, self._root)
        self._segments = slot.segments
        self._appender = Appender(
            slot.path,
            max((s.number for s in slot.segments), default=0),
            min(self._segment_bytes, self._reserve),
        )
        if slot.damaged:
            metrics.SPOOL_DAMAGED.inc(slot.damaged)
        if self.records:
            log.info(
                "spool_recovered",
                directory=str(slot.path),
                records=self.records,
                bytes=self.used_bytes,
            )

    async def adopt(self) -> int:
        """Take over what instances that have died since our start left. Returns how many events of it wait. Raises OSError."""
        slot, loop = self._slot, asyncio.get_running_loop()
        if slot is None or not await asyncio.to_thread(segments.left_behind, self._root, slot.path):
            return 0
        # in the thread of the writes: what is written afterwards comes behind it
        found, damaged = await loop.run_in_executor(
            self._thread, self._appender.adopt, self._root, slot.lock
        )
        self._segments += found
        metrics.SPOOL_DAMAGED.inc(damaged)
        return sum(segment.records for segment in found)

    @property
    def directory(self) -> str:
        """Where it lies."""
        return str(self._slot.path) if self._slot is not None else str(self._root)

    @property
    def records(self) -> int:
        """Events that wait for the broker."""
        return sum(found.records for found in self._segments)

    @property
    def used_bytes(self) -> int:
        """Disk in use."""
        return sum(found.size for found in self._segments)

    @property
    def backlog_bytes(self) -> int:
        """Bytes that wait for the broker."""
        return sum(found.size - found.relayed for found in self._segments) + self._unwritten

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is being written."""
        return self._writing is None and not any(
            found.relayed < found.size for found in self._segments
        )

    @property
    def oldest_at(self) -> float | None:
        """When the oldest event was taken in that waits; what was adopted lies behind what may be younger. None: none does."""
        waiting = [found.since for found in self._segments if found.relayed < found.size]
        return min(waiting + [self._writing_since] * (self._writing is not None), default=None)

    def age_s(self) -> float:
        """How long the oldest event has been waiting."""
        oldest_at = self.oldest_at
        return max(0.0, time.time() - oldest_at) if oldest_at is not None else 0.0

    def refusal(self) -> str | None:
        """Why no new work may begin now; None where there is room."""
        if self.used_bytes + self._unwritten > self._budget - self._reserve:
            return f"the spool holds {self.used_bytes} of {self._budget} bytes and the broker does not take them"
        now = time.monotonic()
        if now >= self._shut_until and now - self._looked_at > SHUT_AFTER_FAILURE_S:
            self._looked_at = now
            free = segments.free_bytes(self._root)
            if free < min(self._reserve, MAX_FLOOR_BYTES):
                self._shut(f"the disk of the spool has {free} bytes left")
        return self._shut_reason if now < self._shut_until else None

    def _shut(self, reason: str) -> None:
        self._shut_until = time.monotonic() + SHUT_AFTER_FAILURE_S
        self._shut_reason = reason

    async def append(self, record: Spooled) -> None:
        """Returns once the event is on the disk. Raises SpoolFull."""
        try:
            frame = encode(record)
        except ValueError as error:
            raise SpoolFull(str(error)) from None
        if self._slot is None or self.used_bytes + self._unwritten + len(frame) > self._budget:
            raise SpoolFull(f"the spool holds {self.used_bytes} of {self._budget} bytes")
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._queue.append((frame, record.at))
        self._waiters.append(waiter)
        self._unwritten += len(frame)
        if self._writing is None:
            self._writing_since = record.at
            self._writing = loop.create_task(self._write())
        await waiter

    async def _write(self) -> None:
        """Write what waits, all of it with one sync, until nothing does."""
        try:
            while self._queue:
                frames, waiters = self._queue, self._waiters
                self._queue, self._waiters = [], []
                self._writing_since = frames[0][1]
                try:
                    await self._commit(frames)
                    error = None
                except OSError as failed:
                    error = f"the disk of the spool refused {len(frames)} events: {failed}"
                    self._shut(error)
                    log.error(
                        "spool_write_failed",
                        directory=self.directory,
                        events=len(frames),
                        reason=str(failed),
                    )
                for waiter in waiters:
                    if not waiter.done():
                        waiter.set_result(None) if error is None else waiter.set_exception(
                            SpoolFull(error)
                        )
        finally:
            self._writing = None

    async def _commit(self, frames: list[tuple[bytes, float]]) -> None:
        data = b"".join([frame for frame, _ in frames])
        try:
            written = await asyncio.get_running_loop().run_in_executor(
                self._thread, self._appender.commit, data
            )
        finally:
            self._unwritten -= len(data)
        number, size, sync_s = written
        assert self._slot is not None
        if not self._segments or self._segments[-1].number != number:
            self._segments.append(Segment(number, segments.path_of(self._slot.path, number)))
        newest = self._segments[-1]
        newest.since = min(newest.since, *(at for _, at in frames))
        newest.size = size
        newest.records += len(frames)
        metrics.SPOOL_APPENDED.inc(len(frames))
        metrics.SPOOL_SYNC.observe(sync_s)

    async def flushed(self) -> None:
        """Wait for what is being written."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    async def read(self, limit: int) -> Portion | None:
        """The oldest events that wait, up to `limit` of one segment; None where none does. Raises OSError."""
        while self._segments:
            head = self._segments[0]
            if head.relayed < head.size:
                scan = await asyncio.to_thread(segments.read, head, limit=limit)
                if scan.placed:
                    head.since = scan.placed[0].record.at
                return Portion(head, scan)
            if not await self._drop(head):
                return None
        return None

    async def _drop(self, head: Segment) -> bool:
        """Remove a segment that is done, unless it is being written to."""
        if head is self._segments[-1] and self._writing is not None:
            return False
        self._segments.remove(head)
        await asyncio.get_running_loop().run_in_executor(self._thread, self._appender.drop, head)
        return True

    async def acknowledge(self, portion: Portion, count: int) -> None:
        """The broker has the first `count` events of a portion: keep that, and forget them. Raises OSError."""
        placed, head = portion.scan.placed, portion.segment
        end = portion.scan.rest if count == len(placed) else placed[count - 1].end
        await self._quarantine(head, [piece for piece in portion.scan.damage if piece[1] <= end])
        head.relayed = end
        head.records = head.records - count if end < head.size else 0
        metrics.SPOOL_RELAYED.inc(count)
        if end < head.size:
            await self._mark(head)
        else:
            await self._drop(head)

    async def _mark(self, head: Segment) -> None:
        try:
            await asyncio.to_thread(segments.write_mark, head)
        except OSError as error:  # a full disk must not keep the spool from being emptied; a restart sends the segment again
            log.warning("spool_mark_not_kept", segment=str(head.path), reason=str(error))

    async def reject(self, portion: Portion, reason: str) -> None:
        """Put the first event of a portion aside: the broker will never take it. Raises OSError."""
        event = portion.records[0]
        name = f"{portion.segment.path.stem}-{portion.scan.placed[0].end}.event"
        kept = await asyncio.to_thread(
            segments.quarantine, portion.segment.path.parent, name, event.event
        )
        metrics.SPOOL_QUARANTINED.inc()
        log.error(
            "spooled_event_refused",
            topic=event.topic,
            shard=event.shard,
            kept=str(kept),
            reason=reason,
        )
        await self.acknowledge(portion, 1)

    async def _quarantine(self, head: Segment, damage: list[tuple[int, int]]) -> None:
        for start, end in damage:
            kept = await asyncio.to_thread(self._keep_aside, head, start, end)
            metrics.SPOOL_QUARANTINED.inc()
            log.error(
                "spool_damage_quarantined",
                segment=str(head.path),
                start=start,
                end=end,
                kept=str(kept),
            )

    def _keep_aside(self, head: Segment, start: int, end: int) -> Path:
        with head.path.open("rb") as file:
            file.seek(start)
            return segments.quarantine(
                head.path.parent, f"{head.path.stem}-{start}.bad", file.read(end - start)
            )

    async def close(self) -> None:
        """Finish what is being written, and let the directory go."""
        await self.flushed()
        if self._slot is None:
            return
        await asyncio.get_running_loop().run_in_executor(self._thread, self._appender.end)
        self._thread.shutdown()
        self._slot.close()
        self._slot = None
