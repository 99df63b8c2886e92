"""Objects on the log: every change is a frame, and the newest frame of a key counts."""

# Space is won back from the oldest file alone: its live objects are appended once more, then it is
# removed. A DELETE frame in it has outlived all older frames of its key, and goes too.

import asyncio
import logging
import time
from collections.abc import Callable

from reefstack.objectstore.errors import Damaged, NoRoom, Refused
from reefstack.objectstore.frames import Frame, Kind, size_of
from reefstack.objectstore.index import Entry, Index
from reefstack.objectstore.segments import Place, Segments

log = logging.getLogger(__name__)

_COPIED_AT_ONCE = 256 * 1024  # bytes of a compaction between two looks at the requests


class Store:
    """Puts, gets and deletes. Changes are visible at once, and durable after `sync`."""

    def __init__(
        self, segments: Segments, *, now_us: Callable[[], int] = lambda: time.time_ns() // 1000
    ) -> None:
        """Read the log. Raises Damaged."""
        self._segments, self._now_us = segments, now_us
        self.index = Index()
        self._sequence = 0
        self._at_us = 0
        self._damaged = self._cramped = False
        for number, frame in segments.replay():
            self._apply(number, frame)

    def _apply(self, number: int, frame: Frame) -> None:
        if frame.kind is Kind.SEAL:
            return
        # A compaction that was cut short leaves an object twice, the copy with the same sequence.
        self._sequence = max(self._sequence, frame.sequence)
        self._at_us = max(self._at_us, frame.at_us)
        if frame.kind is Kind.PUT:
            place = Place(number, frame.value_at)
            size = frame.end - frame.start
            entry = Entry(place, frame.value_size, size, frame.sequence, frame.at_us)
            self.index.set(frame.key, entry)
        elif frame.key in self.index.entries:
            self.index.remove(frame.key)

    def put(
        self, key: str, value: bytes, *, if_match: str = "", if_none_match: bool = False
    ) -> Entry:
        """Write an object, if it has the etag `if_match`, or is new. Raises Refused, NoRoom."""
        old = self.index.entries.get(key)
        if (if_match and (old is None or old.etag != if_match)) or (if_none_match and old):
            raise Refused(412, "PreconditionFailed", "the object is not as the condition wants it")
        # strictly growing, also over a step of the clock: readers order objects by this time
        at_us = max(self._now_us(), self._at_us + 1)
        entry = self._write(key, value, self._sequence + 1, at_us, from_reserve=False)
        self._sequence, self._at_us = entry.sequence, at_us
        return entry

    def delete(self, key: str) -> None:
        """Remove an object, if it is there. Raises NoRoom."""
        if key not in self.index.entries:
            return
        sequence, at_us = self._sequence + 1, self._at_us
        self._segments.append(Kind.DELETE, sequence, at_us, key.encode(), b"", from_reserve=True)
        self._sequence = sequence
        self.index.remove(key)

    def get(self, entry: Entry, start: int = 0, size: int | None = None) -> bytes:
        """Bytes of an object. Raises OSError."""
        return self._segments.read(entry.place, start, entry.size if size is None else size)

    def sync(self) -> None:
        """Make all changes durable. Blocks. Raises OSError: then the process must end."""
        self._segments.sync()

    def close(self) -> None:
        """Close the log in order."""
        self._segments.close()

    @property
    def wasteful(self) -> bool:
        """Whether a compaction is due: over half of the log is useless, or the disk is full."""
        useless, live = self._segments.size - self.index.live_bytes, self.index.live_bytes
        limit = 0 if self._cramped else live + self._segments.segment_bytes
        return not self._damaged and useless > limit + self._segments.segment_bytes

    async def compact(self) -> None:
        """Win back space until the log is no longer wasteful. Raises NoRoom."""
        while self.wasteful and (numbers := self._segments.numbers):
            try:
                await self._empty(numbers[0])
            except Damaged as error:
                # It stays, and all later files: their deletes may be about objects in it.
                log.error("no compaction until the next start: %s", error)
                self._damaged = True
                return
            self.sync()
            self._segments.drop(numbers[0])
        self._cramped = False

    async def _empty(self, number: int) -> None:
        copied = 0
        for frame in self._segments.frames(number):
            entry = self.index.entries.get(frame.key)
            if entry is None or entry.place != (number, frame.value_at):
                continue
            value = self._segments.read(entry.place, 0, entry.size)
            self._write(frame.key, value, entry.sequence, entry.at_us, from_reserve=True)
            copied += entry.frame_size
            if copied >= _COPIED_AT_ONCE:
                copied = 0
                await asyncio.sleep(0.005)

    def _write(
        self, key: str, value: bytes, sequence: int, at_us: int, *, from_reserve: bool
    ) -> Entry:
        encoded = key.encode()
        try:
            place = self._segments.append(
                Kind.PUT, sequence, at_us, encoded, value, from_reserve=from_reserve
            )
        except NoRoom:
            self._cramped = True
            raise
        entry = Entry(place, len(value), size_of(encoded, len(value)), sequence, at_us)
        self.index.set(key, entry)
        return entry
