"""The spool's former files: frames of a mark, a length, a CRC-32 and a payload.

payload  time (8) | lengths (2 each) of topic, shard, traceparent | these three | event
"""

import struct
import zlib
from io import BytesIO
from pathlib import Path

import orjson
import structlog

from services.gateway.domain.log_event import LogEvent

log = structlog.get_logger()

_MARK = b"\xf5\xfeR\xc0"
_FRAME = struct.Struct("<4sII")
_FIELDS = struct.Struct("<dHHH")


def files(directory: Path) -> list[Path]:
    """The segments of a slot, oldest first."""
    return sorted(directory.glob("*.seg"))


def read(path: Path) -> list[LogEvent]:
    """The unacknowledged events of a segment. Damaged bytes are passed over."""
    data, position, events = path.read_bytes(), _acknowledged(path), []
    while (start := data.find(_MARK, position)) >= 0:
        if start > position:
            log.error("spool_damaged", segment=str(path), start=position, end=start)
        position = start + _FRAME.size
        if position > len(data):
            break
        _, length, checksum = _FRAME.unpack_from(data, start)
        payload = data[position : position + length]
        if len(payload) == length and _checksum(payload) == checksum:
            events.append(_event(payload))
            position += length
        else:
            position = start + 1
    return events


def remove(path: Path) -> None:
    """Remove a segment whose events are elsewhere."""
    # The mark first: without it the segment is sent again, which is harmless.
    path.with_suffix(".pos").unlink(missing_ok=True)
    path.unlink()


def _checksum(payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(len(payload).to_bytes(4, "little")))


def _acknowledged(path: Path) -> int:
    mark = path.with_suffix(".pos")
    data = mark.read_bytes() if mark.exists() else b""
    value, checksum = data[:8], data[8:12]
    sound = len(data) == 12 and zlib.crc32(value).to_bytes(4, "little") == checksum
    return int.from_bytes(value, "little") if sound else 0


def _event(payload: bytes) -> LogEvent:
    at, *lengths = _FIELDS.unpack_from(payload)
    rest = BytesIO(payload[_FIELDS.size :])
    topic, shard, traceparent = (rest.read(length).decode() for length in lengths)
    data = rest.read()
    return LogEvent(topic, shard, str(orjson.loads(data)["event_id"]), data, at, traceparent)
