"""Few large objects in place of many small objects of a partition. Pure."""

# An object is a record batch, named by the offset of its first record. The broker reads an offset
# from the object with the greatest name that is not above it. Format: Kafka, batch version 2.

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aiokafka.errors import CorruptRecordException
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords

_NO_PRODUCER = -1
_CREATE_TIME = 0


class Piece(NamedTuple):
    """An object: the offset of its first record, and its size in bytes."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Limits:
    """Which objects are merged. The first of a partition always stays."""

    keep: int = 16  # the newest: their neighbours may still be on their way
    least: int = 64  # fewer are merged only if they fill a whole one
    whole_bytes: int = 2 * 1024 * 1024
    large_bytes: int = 128 * 1024  # objects of this size stay


class Merged(NamedTuple):
    """The records from `offset` up to `end` as an object, and the offsets of its parts."""

    offset: int
    end: int
    parts: tuple[int, ...]
    data: bytes


class Record(NamedTuple):
    """The fields of a record that a reader sees."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def runs(pieces: Sequence[Piece], limits: Limits) -> list[tuple[Piece, ...]]:
    """The runs of neighbours to be joined. `pieces` are sorted."""
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
    """Join `parts` (offset and bytes of each). An object that stays alone is left out."""
    # a batch that is broken, compressed, transactional or of an idempotent producer stays alone
    groups: list[tuple[list[int], list[Record]]] = []
    for offset, data in parts:
        found = records_of(offset, data)
        # never across a gap: a record may still be written there
        if found and groups and groups[-1][1] and groups[-1][1][-1].offset + 1 == offset:
            groups[-1][0].append(offset)
            groups[-1][1].extend(found)
        else:
            groups.append(([offset], found))
    wholes = [_whole(names, records) for names, records in groups if len(names) > 1]
    return [whole for whole in wholes if whole is not None]


def _whole(names: list[int], records: list[Record]) -> Merged | None:
    start, end = names[0], records[-1].offset + 1
    # not compressed, so that the size says how much memory a reader needs
    plain = DefaultRecordBatch.CODEC_NONE
    builder = DefaultRecordBatchBuilder(2, plain, 0, _NO_PRODUCER, -1, -1, 1 << 30)
    for offset, timestamp, key, value, headers in records:
        builder.append(offset - start, timestamp, key, value, list(headers))
    data = bytes(builder.build())
    # the library changes some records, such as those with a time of -1
    return Merged(start, end, tuple(names), data) if records_of(start, data) == records else None


def records_of(offset: int, data: bytes) -> list[Record]:
    """The records of an object; [] if it is not a plain, whole batch without gaps."""
    batches = MemoryRecords(data)
    try:
        batch = batches.next_batch()
        if not isinstance(batch, DefaultRecordBatch) or batches.has_next() or not _plain(batch):
            return []
        first = batch.base_offset
        found = [
            Record(offset + r.offset - first, r.timestamp, r.key, r.value, tuple(r.headers))
            for r in batch
        ]
    except (CorruptRecordException, ValueError):
        return []
    whole = [record.offset for record in found] == [*range(offset, offset + len(found))]
    return found if whole else []


def end_of(offset: int, data: bytes) -> int:
    """The offset after the last record of an object; `offset` itself if it cannot be read."""
    records = records_of(offset, data)
    return records[-1].offset + 1 if records else offset


def _plain(batch: DefaultRecordBatch) -> bool:
    return bool(
        batch.validate_crc()
        and not batch.is_control_batch
        and not batch.is_transactional
        and batch.producer_id == _NO_PRODUCER
        and batch.timestamp_type == _CREATE_TIME
        # others may need a codec that is not here
        and batch.compression_type == DefaultRecordBatch.CODEC_NONE
    )
