"""The files of the log, `<number>.log`, and a file in reserve."""

# Only the newest file is written. It is allocated whole when it is made, so that a full disk is
# seen before a frame is half written, and so that a sync writes no file size. A file that is closed
# ends in a SEAL frame and has no room left over. Each start opens a new file: a torn tail is cut
# off, never written over. The reserve is for deletes and compaction, which free a full disk.

import contextlib
import errno
import logging
import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from reefcommon.files import lock, sync_directory
from reefstack.objectstore.errors import Damaged, InUse, NoRoom
from reefstack.objectstore.frames import Frame, Kind, encode, frames_of, scattered_frames, size_of

log = logging.getLogger(__name__)

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_SEAL_BYTES = size_of(b"", 0)


class Place(NamedTuple):
    """The number of a file, and the offset of a value there."""

    segment: int
    value_at: int


@dataclass(slots=True)
class Segment:
    """An open file. `end`: length of its frames; `room`: allocated length."""

    number: int
    path: Path
    descriptor: int
    end: int = 0
    room: int = 0
    synced: int = 0


class Segments:
    """The log of a directory, which is locked for this process."""

    def __init__(self, directory: Path, segment_bytes: int, *, skip_damage: bool = False) -> None:
        """Raises InUse, OSError."""
        self._directory, self._skip_damage = directory, skip_damage
        self.segment_bytes = segment_bytes
        if (descriptor := lock(directory / "lock")) is None:
            raise InUse(f"{directory} is in use by another object store")
        self._lock = descriptor
        self._reserve = directory / "reserve"
        self._has_reserve = self._reserve.exists()
        self._segments: dict[int, Segment] = {}
        self._active: Segment | None = None

    @property
    def numbers(self) -> list[int]:
        """The files that are complete, oldest first."""
        return [number for number, segment in self._segments.items() if segment is not self._active]

    @property
    def size(self) -> int:
        """Bytes of all frames."""
        return sum(segment.end for segment in self._segments.values())

    def replay(self) -> Iterator[tuple[int, Frame]]:
        """All frames, oldest first, with their file's number. Call it once.

        Raises:
            Damaged: synced bytes cannot be read. A torn tail is cut off.
        """
        paths = sorted(self._directory.glob("*.log"))
        for path in paths:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            segment = Segment(int(path.stem), path, descriptor)
            self._segments[segment.number] = segment
            for frame in self._frames(segment, torn_tail=path is paths[-1]):
                yield segment.number, frame
            if segment.end != os.fstat(descriptor).st_size:
                os.ftruncate(descriptor, segment.end)
                os.fsync(descriptor)

    def _frames(self, segment: Segment, *, torn_tail: bool) -> Iterator[Frame]:
        length = os.fstat(segment.descriptor).st_size
        if not length:
            return
        with mmap.mmap(segment.descriptor, length, access=mmap.ACCESS_READ) as data:
            while True:
                for frame in frames_of(data, segment.end):
                    segment.end = frame.end
                    yield frame
                if segment.end == length:
                    return
                # A frame vouches for the bytes that were synced when it was written. A gap that no
                # frame vouches for is the tail of writes that were never answered.
                gap = segment.end
                if torn_tail and all(f.synced <= gap for f in scattered_frames(data, gap)):
                    return
                later = next(scattered_frames(data, gap), None)
                damage = Damaged(segment.path, segment.end, later.start if later else None)
                if not self._skip_damage:
                    raise damage
                log.error("left out: %s", damage)
                if later is None:
                    return
                segment.end = later.start

    def append(
        self, kind: Kind, sequence: int, at_us: int, key: bytes, value: bytes, *, from_reserve: bool
    ) -> Place:
        """Write a frame, durable after `sync`. Raises NoRoom (nothing is written), OSError."""
        if not self._has_reserve and not from_reserve:
            self._refill_reserve()
            if not self._has_reserve:  # the room that is left is for what frees room
                raise NoRoom("the disk is full")
        size = size_of(key, len(value))
        segment = self._active
        if segment is None or segment.end + size + _SEAL_BYTES > segment.room:
            segment = self._open_next(size + _SEAL_BYTES, from_reserve=from_reserve)
        parts = encode(kind, sequence, at_us, segment.synced, key, value)
        try:
            written = os.pwritev(segment.descriptor, parts, segment.end)
        except OSError as error:
            raise _as_no_room(error) from None
        if written != size:
            raise NoRoom("the disk took a part of a frame")
        value_at = segment.end + size - len(value)
        segment.end += size
        return Place(segment.number, value_at)

    def read(self, place: Place, start: int, size: int) -> bytes:
        """`size` bytes of a value, from its byte `start`. Raises OSError."""
        return os.pread(self._segments[place.segment].descriptor, size, place.value_at + start)

    def frames(self, number: int) -> Iterator[Frame]:
        """The frames of a complete file. Raises Damaged."""
        segment = self._segments[number]
        if not segment.end:  # killed before its first frame; an empty file cannot be mapped
            return
        with mmap.mmap(segment.descriptor, 0, access=mmap.ACCESS_READ) as data:
            end = 0
            for frame in frames_of(data):
                end = frame.end
                yield frame
            if end != segment.end:
                raise Damaged(segment.path, end, None)

    def sync(self) -> None:
        """Make all frames durable. Raises OSError: then the process must end."""
        if self._active is not None and self._active.synced != self._active.end:
            os.fdatasync(self._active.descriptor)
            self._active.synced = self._active.end

    def drop(self, number: int) -> None:
        """Remove a complete file, durably."""
        segment = self._segments.pop(number)
        os.close(segment.descriptor)
        segment.path.unlink()
        sync_directory(self._directory)
        self._refill_reserve()

    def close(self) -> None:
        """Close the log in order."""
        self._seal()
        for segment in self._segments.values():
            os.close(segment.descriptor)
        os.close(self._lock)

    def _seal(self) -> None:
        if self._active is None:
            return
        self.sync()
        segment, self._active = self._active, None
        seal = b"".join(encode(Kind.SEAL, 0, 0, segment.end, b"", b""))
        os.pwrite(segment.descriptor, seal, segment.end)
        segment.end += len(seal)
        os.ftruncate(segment.descriptor, segment.end)
        os.fsync(segment.descriptor)

    def _open_next(self, least: int, *, from_reserve: bool) -> Segment:
        # allocated before the current file is sealed: without room that one stays as it is
        number = max(self._segments, default=0) + 1
        path = self._directory / f"{number:012}.log"
        room = max(self.segment_bytes, least)
        new = path.with_suffix(".new")
        try:
            self._allocate(new, room)
        except NoRoom:
            if not from_reserve or room > self.segment_bytes or not self._has_reserve:
                raise
            new, self._has_reserve = self._reserve, False
        self._seal()  # before the next file has its name: only the newest file may have a torn tail
        new.rename(path)
        sync_directory(self._directory)
        segment = Segment(number, path, os.open(path, os.O_RDWR | os.O_CLOEXEC), room=room)
        self._segments[number] = self._active = segment
        self._refill_reserve()
        return segment

    def _allocate(self, path: Path, room: int) -> None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, room)
            os.fsync(descriptor)
        except OSError as error:
            path.unlink()
            raise _as_no_room(error) from None
        finally:
            os.close(descriptor)

    def _refill_reserve(self) -> None:
        if not self._has_reserve:
            with contextlib.suppress(NoRoom):
                self._allocate(self._reserve, self.segment_bytes)
                self._has_reserve = True


def _as_no_room(error: OSError) -> OSError | NoRoom:
    return NoRoom(f"the disk is full: {error}") if error.errno in _NO_ROOM else error
