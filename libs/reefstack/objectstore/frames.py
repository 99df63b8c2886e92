"""An entry of the log as bytes. Pure."""

# magic 4 | crc32 4 | value length 4 | key length 2 | kind 1 | 0
# | sequence 8 | time in us 8 | synced 8 | key | value
#
# All numbers are little-endian. The checksum covers everything after itself. `synced` is the length
# of this file that was on the disk when the frame was written.

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from mmap import mmap
from typing import NamedTuple

MAGIC = b"\x89rOf"
_HEADER = struct.Struct("<4sIIHBxQQQ")
_COVERED = struct.Struct("<IHBxQQQ")


class Kind(IntEnum):
    """The kind of a frame. `SEAL` ends a file that was closed in order."""

    PUT = 1
    DELETE = 2
    SEAL = 3


class Frame(NamedTuple):
    """A frame of a file. `value_at`, `start` and `end` are offsets there."""

    kind: Kind
    sequence: int
    at_us: int
    synced: int
    key: str
    value_at: int
    value_size: int
    start: int
    end: int


def encode(
    kind: Kind, sequence: int, at_us: int, synced: int, key: bytes, value: bytes
) -> tuple[bytes, bytes, bytes]:
    """The parts of a frame, in order; not joined, to spare a copy of the value."""
    covered = _COVERED.pack(len(value), len(key), kind, sequence, at_us, synced)
    crc = zlib.crc32(value, zlib.crc32(key, zlib.crc32(covered)))
    return MAGIC + crc.to_bytes(4, "little") + covered, key, value


def size_of(key: bytes, value_size: int) -> int:
    """The length of a frame in bytes."""
    return _HEADER.size + len(key) + value_size


def frame_at(data: bytes | mmap, start: int) -> Frame | None:
    """The frame that begins at `start`; None if there is no valid frame."""
    if start + _HEADER.size > len(data):
        return None
    fields = _HEADER.unpack_from(data, start)
    magic, crc, value_size, key_size, kind, sequence, at_us, synced = fields
    key_at = start + _HEADER.size
    value_at = key_at + key_size
    end = value_at + value_size
    if magic != MAGIC or end > len(data) or zlib.crc32(data[start + 8 : end]) != crc:
        return None
    key = data[key_at:value_at].decode()
    return Frame(Kind(kind), sequence, at_us, synced, key, value_at, value_size, start, end)


def frames_of(data: bytes | mmap, start: int = 0) -> Iterator[Frame]:
    """The frames that follow each other from `start`."""
    while (frame := frame_at(data, start)) is not None:
        yield frame
        start = frame.end


def scattered_frames(data: bytes | mmap, start: int) -> Iterator[Frame]:
    """The valid frames at or after `start`, whatever lies between them."""
    while (start := data.find(MAGIC, start)) >= 0:
        frame = frame_at(data, start)
        if frame is not None:
            yield frame
        start = frame.end if frame is not None else start + 1
