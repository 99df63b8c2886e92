"""Merging objects of the embedded log: no reader misses a record, at whatever moment it reads and wherever the merger dies."""

import struct
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import obstore
import pytest
from aiokafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c
from hypothesis import given, settings
from hypothesis import strategies as st
from obstore.store import MemoryStore

from reefstack.merger.objects import Limits, Piece, Record, merged, records_of, runs
from reefstack.merger.rounds import NOTES, MergeFailed, Merger

PLACE = "clusters/c/topics/t/partitions/0000000003"
CONTROL, BROKERS_TIME = 0x20, 0x08  # attributes of a batch
LIMITS = Limits(keep=2, least=4, whole_bytes=1 << 20, large_bytes=1 << 20)


def record(offset: int) -> Record:
    return Record(
        offset,
        1_800_000_000_000 + 7 * offset,
        None if offset % 3 else b"k%d" % offset,
        b"v" * (offset % 5) or None,
        (("h", b"1"),),
    )


def batch(first: int, count: int = 1, *, transactional: int = 0, producer: int = -1) -> bytes:
    """An object as the broker writes one: offsets count from 0, only its name says where it is."""
    builder = DefaultRecordBatchBuilder(2, 0, transactional, producer, -1, -1, 1 << 20)
    for n in range(count):
        _, at, key, value, headers = record(first + n)
        builder.append(n, timestamp=at, key=key, value=value, headers=list(headers))
    return bytes(builder.build())


def built(records: dict[int, Record], *, codec: int = 0) -> bytes:
    """A batch of these records at these places in it."""
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for place, (_, at, key, value, headers) in records.items():
        builder.append(place, timestamp=at, key=key, value=value, headers=list(headers))
    return bytes(builder.build())


def flagged(data: bytes, attributes: int) -> bytes:
    """The same batch with these attributes, and the checksum that belongs to them."""
    rest = struct.pack(">h", attributes) + data[23:]
    return data[:17] + struct.pack(">I", calc_crc32c(rest)) + rest


def path(offset: int) -> str:
    return f"{PLACE}/records/{offset:020}.batch"


def log_of(sizes: Sequence[int], gaps: Sequence[int] = ()) -> MemoryStore:
    """Objects of so many records each, one after another; before the objects numbered in `gaps` an offset is missing."""
    store, offset = MemoryStore(), 0
    for n, count in enumerate(sizes):
        offset += n in gaps
        obstore.put(store, path(offset), batch(offset, count))
        offset += count
    return store


def objects(store: MemoryStore) -> dict[int, bytes]:
    found = [
        one["path"] for chunk in obstore.list(store, prefix=f"{PLACE}/records/") for one in chunk
    ]
    return {int(name[-26:-6]): bytes(obstore.get(store, name).bytes()) for name in sorted(found)}


def read(store: MemoryStore, start: int) -> list[Record]:
    """As the broker and its client read from an offset to the end: the object that may have it, and all after it; what is before it is skipped."""
    there = objects(store)
    wanted = [name for name in there if name >= start]
    before = [name for name in there if name < start]
    if before and wanted[:1] != [start]:
        wanted.insert(0, before[-1])
    position, found = start, []
    for name in wanted:
        for one in records_of(name, there[name]):
            if one.offset >= position:
                found.append(one)
                position = one.offset + 1
    return found


def all_records(store: MemoryStore) -> list[Record]:
    return [one for name, data in objects(store).items() for one in records_of(name, data)]


def assert_whole(store: MemoryStore, expected: list[Record]) -> None:
    for start in range(expected[-1].offset + 2):
        assert read(store, start) == [one for one in expected if one.offset >= start], (
            f"from {start}"
        )


class Dies(Exception):
    """The process was killed."""


class Failing:
    """Counts writes and removals; the `last`-th one is the last that is carried out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, last: int) -> None:
        self.done, self._last = 0, last
        for name in ("put_async", "delete_async"):
            monkeypatch.setattr(obstore, name, self._counted(getattr(obstore, name)))

    def step(self) -> None:
        if self.done == self._last:
            raise Dies
        self.done += 1

    def _counted(self, real: Any) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            self.step()
            return await real(*args, **kwargs)

        return call


def merger(store: MemoryStore) -> Merger:
    return Merger(store, LIMITS, flush=lambda: None)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=30),
    gaps=st.sets(st.integers(1, 30), max_size=3),
)
def test_a_merge_keeps_every_record(sizes: list[int], gaps: set[int]) -> None:
    """Values, keys, headers, times and offsets; a gap is never inside what was merged."""
    parts = list(objects(log_of(sizes, sorted(gaps))).items())
    rest = dict(parts)
    for made in merged(parts):
        assert records_of(made.offset, made.data) == [
            one for name in made.parts for one in records_of(name, rest.pop(name))
        ]
        assert [one.offset for one in records_of(made.offset, made.data)] == list(
            range(made.offset, made.end)
        )
    left = sorted(rest)
    assert all(
        before + len(records_of(before, rest[before])) < after for before, after in pairwise(left)
    ), "neighbours are together"


async def test_many_objects_become_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reefstack.merger.rounds._CLOCK_S", 0)
    store = log_of([1, 2, 1, 1, 3, 1, 1, 1, 1, 1])
    expected = all_records(store)
    one = merger(store)
    await one.round()
    assert list(objects(store)) == [0, 1, 11, 12], "the first and the newest stay"
    assert one.objects == 6
    assert_whole(store, expected)
    await one.round()
    assert list(objects(store)) == [0, 1, 11, 12]
    assert list(obstore.list(store, prefix=NOTES)) == []


async def test_killed_at_any_step_nothing_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After each write and each removal every reader finds everything, and the next round finishes it."""
    monkeypatch.setattr("reefstack.merger.rounds._CLOCK_S", 0)
    sizes, gaps = [1, 1, 2, 1, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1], [8]
    for steps in range(100):
        store = log_of(sizes, gaps)
        expected = all_records(store)
        with monkeypatch.context() as patched:
            failing = Failing(patched, steps)
            try:
                await merger(store).round()
            except Dies:
                assert_whole(store, expected)
            else:
                assert failing.done == steps > 10
                break
        again = merger(store)
        await again.round()
        assert_whole(store, expected)
        assert list(objects(store)) == [0, 1, 10, 16, 17], f"killed after {steps}"
    else:
        pytest.fail("it never came to its end")


async def test_what_is_not_what_was_written_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    store = log_of([1] * 9)
    expected = all_records(store)
    real = obstore.put_async

    async def broken(kept: Any, name: str, data: bytes, **kwargs: Any) -> Any:
        return await real(
            kept, name, data[:-1] if name == path(1) and records_of(1, data)[1:] else data, **kwargs
        )

    monkeypatch.setattr(obstore, "put_async", broken)
    with pytest.raises(MergeFailed, match="not what was written"):
        await merger(store).round()
    assert_whole(store, expected)
    monkeypatch.undo()
    await merger(store).round()
    assert_whole(store, expected)


async def test_a_first_part_that_cannot_be_read_any_more_is_in_the_note(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after a power cut, with the whole half on the disk. A note that is not whole says that nothing was done."""
    store = log_of([1] * 9)
    expected = all_records(store)
    with monkeypatch.context() as patched:
        Failing(patched, 2)  # the note and the whole
        with pytest.raises(Dies):
            await merger(store).round()
    obstore.put(store, path(1), b"\0" * 500)
    await merger(store).round()
    assert_whole(store, expected)
    obstore.put(store, f"{NOTES}/{PLACE}", b'{"offset": 1')
    obstore.put(store, f"{PLACE}/records/odd-name", b"")
    await merger(store).round()
    obstore.delete(store, f"{PLACE}/records/odd-name")
    assert_whole(store, expected)
    assert [one["path"] for chunk in obstore.list(store, prefix=NOTES) for one in chunk] == []


class Cache:
    """A disk with a write cache: what was not flushed may be there after a power cut or not, each write for itself, or half of it."""

    def __init__(self, store: MemoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = store
        self.flush()
        real_put, real_delete = obstore.put_async, obstore.delete_async

        async def put(store: MemoryStore, name: str, data: bytes, **kwargs: Any) -> Any:
            done = await real_put(store, name, data, **kwargs)
            self.unsure.append((name, data))
            return done

        async def delete(store: MemoryStore, name: str) -> None:
            await real_delete(store, name)
            self.unsure.append((name, None))

        monkeypatch.setattr(obstore, "put_async", put)
        monkeypatch.setattr(obstore, "delete_async", delete)

    def flush(self) -> None:
        names = [one["path"] for chunk in obstore.list(self.store) for one in chunk]
        self.sure = {name: bytes(obstore.get(self.store, name).bytes()) for name in names}
        self.unsure: list[tuple[str, bytes | None]] = []

    def after_a_power_cut(self) -> Iterator[MemoryStore]:
        torn = [(name, data[: len(data) // 2]) for name, data in self.unsure if data is not None]
        for happened in ([], self.unsure, *([one] for one in (*self.unsure, *torn))):
            left = MemoryStore()
            for name, data in {**self.sure, **dict(happened)}.items():
                if data is not None:
                    obstore.put(left, name, data)
            yield left


@pytest.mark.parametrize("begun", [False, True], ids=["from the start", "with a torn whole"])
async def test_after_a_power_cut_at_any_step_nothing_is_lost(
    monkeypatch: pytest.MonkeyPatch, begun: bool
) -> None:
    """Whatever the disk had not been told to keep: the note outlives the first part, the whole its parts, and these outlive the note."""
    monkeypatch.setattr("reefstack.merger.rounds._CLOCK_S", 0)
    expected = all_records(log_of([1] * 8))
    for steps in range(100):
        store = log_of([1] * 8)
        with monkeypatch.context() as patched:
            if begun:
                with patched.context() as dying:
                    Failing(dying, 2)  # the note and the whole
                    with pytest.raises(Dies):
                        await merger(store).round()
                obstore.put(store, path(1), objects(store)[1][:50])
            cache = Cache(store, patched)
            failing = Failing(patched, steps)

            def flush(cache: Cache = cache, failing: Failing = failing) -> None:
                failing.step()  # the power may fail just before it, too
                cache.flush()

            try:
                await Merger(store, LIMITS, flush=flush).round()
            except Dies:
                finished = False
            else:
                finished = True
        for left in cache.after_a_power_cut():
            await merger(left).round()
            assert_whole(left, expected)
        if finished:
            break
    else:
        pytest.fail("it never came to its end")


def test_what_has_more_to_it_than_records_is_left_alone() -> None:
    """Transactions, producers' sequences, what is broken, compressed or the broker's own, what holds two batches or lacks an offset."""
    assert records_of(2, flagged(batch(2), 0)) == [record(2)]
    plain = [(n, batch(n)) for n in range(4)]
    for odd in (
        batch(2, transactional=1),
        batch(2, producer=7),
        batch(2)[:-1],
        batch(2) + batch(2),
        b"",
        batch(2)[:60] + b"\xff" + batch(2)[61:],
        batch(2).replace(b"vv", b"vw"),
        built({0: record(2)}, codec=DefaultRecordBatch.CODEC_GZIP),
        flagged(batch(2), CONTROL),
        flagged(batch(2), BROKERS_TIME),
        built({0: record(2), 2: record(4)}),
        built({1: record(3)}),
    ):
        assert records_of(2, odd) == []
        (made,) = merged([*plain[:2], (2, odd), plain[3]])
        assert (made.offset, made.end, made.parts) == (0, 2, (0, 1))
    assert merged(plain[:1]) == []


def test_which_objects_are_worth_it() -> None:
    def names(sizes: list[int], limits: Limits) -> list[list[int]]:
        return [
            [piece.offset for piece in run]
            for run in runs([Piece(n, size) for n, size in enumerate(sizes)], limits)
        ]

    limits = Limits(keep=2, least=3, whole_bytes=100, large_bytes=50)
    assert names([1] * 4, limits) == [], "all are the first, or the newest"
    assert names([1] * 5, limits) == []
    assert names([1] * 6, limits) == [[1, 2, 3]]
    assert names([1, 1, 1, 60, 1, 1, 1, 1, 1], limits) == [[4, 5, 6]], "a large one parts them"
    assert names([1, 40, 40, 40, 40, 40, 40, 1, 1, 1], limits) == [[1, 2, 3], [4, 5, 6]]
    assert names([], limits) == []
