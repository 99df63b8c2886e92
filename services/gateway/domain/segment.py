"""The bytes of the spool: events framed with a mark, a length and a checksum, so that damage is found and what follows it is not lost.

    frame    mark (4) | length of the payload (4) | CRC-32 of length and payload (4) | payload
    payload  time, unix seconds (8) | lengths of topic, shard, traceparent (2 each) | topic | shard | traceparent | event

The mark holds bytes that UTF-8 never does: no event looks like a frame.
"""

import struct
import zlib
from dataclasses import dataclass

MARK = b"\xf5\xfeR\xc0"
MAX_PAYLOAD_BYTES = 16 * 1024 * 1024
_FRAME = struct.Struct("<II")
_FIELDS = struct.Struct("<dHHH")
FRAME_BYTES = len(MARK) + _FRAME.size


@dataclass(frozen=True, slots=True)
class Spooled:
    """One event that waits for the broker. `at`: unix seconds at which it was taken in."""

    at: float
    topic: str
    shard: str
    traceparent: str
    event: bytes


@dataclass(frozen=True, slots=True)
class Placed:
    """An event and where its frame ends, in bytes from the segment's beginning."""

    record: Spooled
    end: int


@dataclass(frozen=True, slots=True)
class Scan:
    """What a piece of a segment holds. `damage`: (from, to) of bytes that are no frame; `rest`: where an unfinished frame begins."""

    placed: tuple[Placed, ...]
    damage: tuple[tuple[int, int], ...]
    rest: int


def encode(record: Spooled) -> bytes:
    """One frame. Raises ValueError where the event is too large for one."""
    topic, shard, traceparent = (
        record.topic.encode(),
        record.shard.encode(),
        record.traceparent.encode(),
    )
    head = _FIELDS.pack(record.at, len(topic), len(shard), len(traceparent))
    payload = b"".join((head, topic, shard, traceparent, record.event))
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ValueError(f"an event of {len(record.event)} bytes is too large for the spool")
    return b"".join((MARK, _FRAME.pack(len(payload), _checksum(payload)), payload))


def scan(data: bytes, offset: int = 0, *, whole: bool = True, limit: int | None = None) -> Scan:
    """Read frames from `data`, which begins `offset` bytes into its segment.

    whole: nothing follows `data`, so that an unfinished frame at its end is damage; else it is left for the next piece.
    limit: stop after this many frames.
    """
    placed: list[Placed] = []
    damage: list[tuple[int, int]] = []
    position = 0
    while position < len(data) and (limit is None or len(placed) < limit):
        end = _frame_end(data, position)
        if end is not None:
            placed.append(Placed(_decode(data[position + FRAME_BYTES : end]), offset + end))
            position = end
        elif not whole and _unfinished(data, position):
            break
        else:
            after = _next_frame(data, position + 1, whole=whole)
            damage.append((offset + position, offset + after))
            position = after
    return Scan(tuple(placed), tuple(damage), offset + position)


def _checksum(payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(len(payload).to_bytes(4, "little")))


def _frame_end(data: bytes, position: int) -> int | None:
    """Where the frame at `position` ends; None where there is no sound one."""
    start = position + FRAME_BYTES
    if start > len(data) or data[position : position + len(MARK)] != MARK:
        return None
    length, checksum = _FRAME.unpack_from(data, position + len(MARK))
    if (
        length < _FIELDS.size
        or start + length > len(data)
        or _checksum(data[start : start + length]) != checksum
    ):
        return None
    return start + int(length)


def _unfinished(data: bytes, position: int) -> bool:
    """Whether more bytes could make a frame of what begins at `position`."""
    head = data[position : position + FRAME_BYTES]
    if len(head) < FRAME_BYTES:
        return head[: len(MARK)] == MARK[: len(head)]
    length = int(_FRAME.unpack_from(head, len(MARK))[0])
    return (
        head.startswith(MARK)
        and length <= MAX_PAYLOAD_BYTES
        and position + FRAME_BYTES + length > len(data)
    )


def _next_frame(data: bytes, position: int, *, whole: bool) -> int:
    """Where the next sound frame begins, or may begin; the end of `data` where there is none."""
    start = position
    while (position := data.find(MARK, position)) >= 0:
        if _frame_end(data, position) is not None or (not whole and _unfinished(data, position)):
            return position
        position += 1
    return (
        len(data) if whole else max(start, len(data) - len(MARK) + 1)
    )  # the piece may end within a mark


def _decode(payload: bytes) -> Spooled:
    at, topic, shard, traceparent = _FIELDS.unpack_from(payload)
    a = _FIELDS.size
    b, c = a + topic, a + topic + shard
    d = c + traceparent
    return Spooled(
        at, payload[a:b].decode(), payload[b:c].decode(), payload[c:d].decode(), payload[d:]
    )
