"""Many small objects of one partition of the embedded log as few large ones. Pure: names and bytes in, names and bytes out.

An object is one record batch, and is named by the offset of its first record; what reads it looks for the object with the greatest name
that is not above the offset. Source of the format: the Kafka protocol, record batch version 2.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

_NO_PRODUCER = -1
_CREATE_TIME = 0


class Piece(NamedTuple):
    """One object: the offset of its first record, and its size in bytes."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Limits:
    """What is worth merging. The first object of a partition stays, since its age says to readers where the log begins."""

    keep: int = 64
    """The newest objects of a partition stay as they are: their neighbours may still be on their way."""
    least: int = 256
    """Fewer objects than these are merged only where they make a whole new one."""
    whole_bytes: int = 2 * 1024 * 1024
    large_bytes: int = 128 * 1024
    """Objects of this size are left alone."""


class Merged(NamedTuple):
    """Records `offset` up to `end`, without it, as one object; `parts` are the objects that they were in."""

    offset: int
    end: int
    parts: tuple[int, ...]
    data: bytes


class Record(NamedTuple):
    """All that readers see of a record."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def runs(pieces: Sequence[Piece], limits: Limits) -> list[tuple[Piece, ...]]:
    """Which objects should become one, each time: neighbours in the order of `pieces`, which are sorted."""
    found: list[tuple[Piece, ...]] = []
    run: list[Piece] = []
    size = 0
    for piece in pieces[1 : max(len(pieces) - limits.keep, 1)]:
        if piece.size >= limits.large_bytes:
            found += _worth(run, limits)
            run, size = [], 0
            continue
        run.append(piece)
        size += piece.size
        if size >= limits.whole_bytes:
            found.append(tuple(run))
            run, size = [], 0
    return found + _worth(run, limits)


def _worth(run: list[Piece], limits: Limits) -> list[tuple[Piece, ...]]:
    return [tuple(run)] if len(run) >= limits.least else []


def merged(parts: Iterable[tuple[int, bytes]]) -> list[Merged]:
    """`parts` (offset and bytes of each) as fewer objects; what stays alone is left out.

    Nothing is merged across a gap: it may be a record that is still being written, and must not come to lie inside. A batch counts as
    one that is broken, compressed, or has more to it than its records: a transaction, a producer's sequence, the broker's own time.
    """
    groups: list[tuple[list[int], list[Record]]] = []
    for offset, data in parts:
        found = records_of(offset, data)
        if found and groups and groups[-1][1] and groups[-1][1][-1].offset + 1 == offset:
            groups[-1][0].append(offset)
            groups[-1][1].extend(found)
        else:
            groups.append(([offset], found))
    wholes = [_whole(names, records) for names, records in groups if len(names) > 1]
    return [whole for whole in wholes if whole is not None]


def _whole(names: list[int], records: list[Record]) -> Merged | None:
    """Not compressed, so that sizes say what readers have to hold. None where the library would change a record (a time of -1)."""
    start, end = names[0], records[-1].offset + 1
    builder = DefaultRecordBatchBuilder(
        2, DefaultRecordBatch.CODEC_NONE, 0, _NO_PRODUCER, -1, -1, 1 << 30
    )
    for offset, timestamp, key, value, headers in records:
        builder.append(
            offset - start, timestamp=timestamp, key=key, value=value, headers=list(headers)
        )
    data = bytes(builder.build())
    return Merged(start, end, tuple(names), data) if records_of(start, data) == records else None


def records_of(offset: int, data: bytes) -> list[Record]:
    """The records of an object that begins at `offset`; none where it is no plain, whole batch of records that follow each other."""
    batches = MemoryRecords(data)
    try:
        batch = batches.next_batch()
        if not isinstance(batch, DefaultRecordBatch) or batches.has_next() or not _plain(batch):
            return []
        first = batch.base_offset
        found = [
            Record(
                offset + one.offset - first, one.timestamp, one.key, one.value, tuple(one.headers)
            )
            for one in batch
        ]
    except (CorruptRecordException, ValueError):
        return []
    return found if found and found[0].offset == offset and _contiguous(found) else []


def end_of(offset: int, data: bytes) -> int:
    """The offset after the last record of an object; `offset` itself where it cannot be read."""
    records = records_of(offset, data)
    return records[-1].offset + 1 if records else offset


def _plain(batch: DefaultRecordBatch) -> bool:
    return bool(
        batch.validate_crc()
        and not batch.is_control_batch
        and not batch.is_transactional
        and batch.producer_id == _NO_PRODUCER
        and batch.timestamp_type == _CREATE_TIME
        and batch.compression_type
        == DefaultRecordBatch.CODEC_NONE  # others may need a codec that is not here
    )


def _contiguous(records: Iterable[Record]) -> bool:
    return all(later.offset == earlier.offset + 1 for earlier, later in pairwise(records))
