"""The spool's files, blocking: one directory an instance, held by a lock that the kernel drops with the process.

<root>/<slot>/lock
<root>/<slot>/<number>.seg         frames, appended and synced
<root>/<slot>/<number>.pos         how far the broker has acknowledged them
<root>/<slot>/quarantine/…         bytes that are no frame, kept for a person
"""

import fcntl
import math
import os
import time
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import structlog

from services.gateway.domain import segment

log = structlog.get_logger()


@dataclass(slots=True)
class Segment:
    """One file. Bytes up to `size` are on the disk; those up to `relayed` are acknowledged by the broker."""

    number: int
    path: Path
    size: int = 0
    relayed: int = 0
    records: int = 0  # not relayed yet
    since: float = math.inf  # when the first of these was taken in


@dataclass(slots=True)
class Slot:
    """The directory of this instance."""

    path: Path
    lock: int
    segments: list[Segment] = field(default_factory=list)
    damaged: int = 0

    def close(self) -> None:
        """Let another instance have it."""
        os.close(self.lock)


def claim(root: Path) -> Slot:
    """Take the first slot that no living instance holds, and everything that dead instances left in others. Raises OSError."""
    root.mkdir(parents=True, exist_ok=True)
    number = 0
    while (lock := _lock(root / str(number))) is None:
        number += 1
    for directory in (
        root.parent,
        root,
    ):  # a segment lasts only as long as the directories that name it
        sync_directory(directory)
    slot = Slot(root / str(number), lock)
    slot.segments, slot.damaged = recover(slot.path)
    _adopt_all(root, slot)
    return slot


def left_behind(root: Path, own: Path) -> bool:
    """Whether there is a slot with events that no living instance holds. Raises OSError."""
    for other in root.iterdir():
        if (
            other != own
            and other.is_dir()
            and any(other.glob("*.seg"))
            and (held := _lock(other)) is not None
        ):
            os.close(held)
            return True
    return False


def _adopt_all(root: Path, slot: Slot) -> None:
    for other in sorted(root.iterdir()):
        if other != slot.path and other.is_dir() and (held := _lock(other)) is not None:
            try:
                _adopt(slot, other)
            finally:
                os.close(held)


def _lock(path: Path) -> int | None:
    path.mkdir(exist_ok=True)
    fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _adopt(slot: Slot, other: Path) -> None:
    """Move another instance's segments behind our own, oldest first: a crash in between leaves the rest for the next start."""
    segments, damaged = recover(other)
    slot.damaged += damaged
    for found in segments:
        number = slot.segments[-1].number + 1 if slot.segments else 1
        mark, path = found.path.with_suffix(".pos"), path_of(slot.path, number)
        found.path.replace(path)
        found.number, found.path = number, path
        slot.segments.append(found)
        if mark.exists():  # never before its segment: another one might come to have that number, and lose its beginning
            mark.replace(path.with_suffix(".pos"))
    if segments:
        sync_directory(slot.path)
        sync_directory(other)
        log.warning(
            "spool_adopted",
            source=str(other),
            segments=len(segments),
            records=sum(s.records for s in segments),
        )


def recover(path: Path) -> tuple[list[Segment], int]:
    """The segments of a directory, oldest first, and how many damaged places they have. A torn last write is cut off."""
    segments, damaged = [], 0
    files = sorted(path.glob("*.seg"))
    for mark in path.glob("*.pos"):
        if not mark.with_suffix(".seg").exists():
            mark.unlink()
    for file in files:
        data = file.read_bytes()
        found = segment.scan(data)
        damage = list(found.damage)
        if file == files[-1] and damage and damage[-1][1] == len(data):
            start, end = damage.pop()
            _truncate(file, start)
            data = data[:start]
            log.warning("spool_torn_write_cut_off", segment=str(file), bytes=end - start)
        relayed = read_mark(file)
        if relayed not in {0, *(placed.end for placed in found.placed)}:
            relayed = 0
        if damage:
            damaged += len(damage)
            log.error("spool_damaged", segment=str(file), places=damage)
        waiting = [placed.record.at for placed in found.placed if placed.end > relayed]
        segments.append(
            Segment(
                int(file.stem),
                file,
                len(data),
                relayed,
                len(waiting),
                min(waiting, default=math.inf),
            )
        )
    return segments, damaged


def _truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
        os.fsync(file.fileno())


class Appender:
    """Writes batches of frames at the end of the newest segment. One thread uses it."""

    def __init__(self, directory: Path, last: int, segment_bytes: int) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._number = last
        self._fd = -1
        self._size = 0

    def commit(self, frames: bytes) -> tuple[int, int, float]:
        """Write and sync. Returns the segment's number, its size, and the seconds that the sync took. Raises OSError: nothing counts."""
        if self._fd < 0 or self._size >= self._segment_bytes:
            self._begin()
        try:
            rest = memoryview(frames)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            started = time.perf_counter()
            os.fdatasync(self._fd)
        except OSError:
            self._abandon()
            raise
        self._size += len(frames)
        return self._number, self._size, time.perf_counter() - started

    def _begin(self) -> None:
        self.end()
        number = self._number + 1
        fd = os.open(
            path_of(self._directory, number),
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC,
            0o600,
        )
        self._fd, self._size, self._number = fd, 0, number
        try:
            sync_directory(self._directory)
        except OSError:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """After a failed write or sync nothing behind the last good one can be relied on: cut it off, and go on in another file."""
        try:
            os.ftruncate(self._fd, self._size)
            if not self._size:
                path_of(self._directory, self._number).unlink()
        except OSError as error:
            log.warning("spool_not_cut_off", segment=self._number, reason=str(error))
        self.end()

    def end(self) -> None:
        """Close the segment; the next batch begins another."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def adopt(self, root: Path, lock: int) -> tuple[list[Segment], int]:
        """Take what dead instances left in other slots, behind our own. Returns it, and how many damaged places it has. Where the disk
        fails on the way, that is what had been taken; the rest is still where it was. Raises OSError where nothing could be taken."""
        self.end()
        slot = Slot(
            self._directory, lock, [Segment(self._number, path_of(self._directory, self._number))]
        )
        try:
            _adopt_all(root, slot)
        except OSError as error:
            if not slot.segments[1:]:
                raise
            log.warning("spool_adopted_in_part", segments=len(slot.segments) - 1, reason=str(error))
        self._number = slot.segments[-1].number
        return slot.segments[1:], slot.damaged

    def drop(self, found: Segment) -> None:
        """Close the segment if it is the newest, and remove it."""
        if found.number == self._number:
            self.end()
        remove(found)


def path_of(directory: Path, number: int) -> Path:
    """The file of a segment."""
    return directory / f"{number:012d}.seg"


def read(found: Segment, *, limit: int, piece: int = 1 << 20) -> segment.Scan:
    """Up to `limit` frames of a segment, from where the broker's acknowledgements end. Raises OSError."""
    with found.path.open("rb") as file:
        file.seek(found.relayed)
        data = b""
        while True:
            data += file.read(min(piece, found.size - found.relayed - len(data)))
            whole = found.relayed + len(data) >= found.size
            scanned = segment.scan(data, found.relayed, whole=whole, limit=limit)
            if whole or scanned.placed:
                return scanned
            piece *= 2


def write_mark(found: Segment) -> None:
    """Keep how far a segment is relayed. Raises OSError."""
    value = found.relayed.to_bytes(8, "little")
    fd = os.open(found.path.with_suffix(".pos"), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(fd, value + zlib.crc32(value).to_bytes(4, "little"), 0)
        os.fdatasync(fd)
    finally:
        os.close(fd)


def read_mark(path: Path) -> int:
    """How far a segment is relayed; 0 where that is not known, so that it is sent again."""
    try:
        data = path.with_suffix(".pos").read_bytes()
    except FileNotFoundError:
        return 0
    value, checksum = data[:8], data[8:12]
    return (
        int.from_bytes(value, "little")
        if zlib.crc32(value).to_bytes(4, "little") == checksum
        else 0
    )


def remove(found: Segment) -> None:
    """Remove a segment that is relayed. Raises OSError."""
    found.path.unlink(missing_ok=True)
    found.path.with_suffix(".pos").unlink(missing_ok=True)
    sync_directory(found.path.parent)


def quarantine(directory: Path, name: str, data: bytes) -> Path:
    """Keep bytes that cannot be relayed, for a person. Raises OSError."""
    kept = directory / "quarantine" / name
    kept.parent.mkdir(exist_ok=True)
    with kept.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_directory(kept.parent)
    return kept


def sync_directory(path: Path) -> None:
    """Make what was created, renamed or removed in a directory last."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def free_bytes(path: Path) -> int:
    """Room on the disk."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize
