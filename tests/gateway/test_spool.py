"""The spool alone: what it acknowledged is there afterwards, whatever happened to the process, the last write or the disk."""

import asyncio
import contextlib
import errno
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.domain.segment import MARK, Spooled, encode, scan
from services.gateway.log import segments
from services.gateway.log.spool import Spool, SpoolFull

RECORDS = st.builds(
    Spooled,
    at=st.floats(0, 2e9),
    topic=st.sampled_from(["a.v1", "b.v1"]),
    shard=st.text(max_size=8),
    traceparent=st.just(""),
    event=st.binary(max_size=80) | st.just(b"x" + MARK + b"y"),
)


def event(number: int, *, size: int = 20, shard: str = "s0") -> Spooled:
    return Spooled(
        time.time(), "reef.inferences.v1", shard, "", f"{number:08d}".encode().ljust(size, b".")
    )


def number_of(record: Spooled) -> int:
    return int(record.event[:8])


@contextlib.asynccontextmanager
async def opened(
    root: Path, *, budget_bytes: int = 1 << 26, segment_bytes: int = 1 << 14
) -> AsyncIterator[Spool]:
    spool = Spool(root, budget_bytes=budget_bytes, segment_bytes=segment_bytes)
    await spool.open()
    try:
        yield spool
    finally:
        await spool.close()


async def drained(spool: Spool, limit: int = 7) -> list[Spooled]:
    """Relay everything, in portions."""
    found: list[Spooled] = []
    while (portion := await spool.read(limit)) is not None:
        found += portion.records
        await spool.acknowledge(portion, len(portion.records))
    return found


@given(st.lists(RECORDS, max_size=12), st.integers(0, 10_000), st.binary(max_size=30))
def test_a_torn_write_costs_nothing_that_was_whole(
    records: list[Spooled], cut: int, garbage: bytes
) -> None:
    """Every frame before the cut is read as it was, nothing is invented, and the damage begins at the torn frame."""
    frames = [encode(record) for record in records]
    data = b"".join(frames)
    cut = min(cut, len(data))
    whole, size = [], 0
    for record, frame in zip(records, frames, strict=True):
        if size + len(frame) > cut:
            break
        whole.append(record)
        size += len(frame)
    found = scan(data[:cut] + garbage)
    assert [placed.record for placed in found.placed][: len(whole)] == whole
    assert all(placed.record in records for placed in found.placed)
    if cut > size or garbage:
        assert found.damage
        assert found.damage[0][0] == size


@given(st.lists(RECORDS, min_size=3, max_size=12), st.data())
def test_damage_in_the_middle_costs_one_record(records: list[Spooled], data: st.DataObject) -> None:
    """A flipped byte is found, whether in the mark, the length, the checksum or the event, and the frames after it are read."""
    frames = [encode(record) for record in records]
    victim = data.draw(st.integers(0, len(records) - 1))
    at = data.draw(st.integers(0, len(frames[victim]) - 1))
    broken = bytearray(frames[victim])
    broken[at] ^= data.draw(st.integers(1, 255))
    found = scan(b"".join([*frames[:victim], bytes(broken), *frames[victim + 1 :]]))
    assert [placed.record for placed in found.placed] == records[:victim] + records[victim + 1 :]
    assert len(found.damage) >= 1


@given(st.lists(RECORDS, max_size=8), st.integers(1, 50), st.binary(max_size=20))
def test_reading_in_pieces_finds_the_same(
    records: list[Spooled], piece: int, garbage: bytes
) -> None:
    """However the bytes are cut into pieces."""
    data = (
        b"".join(encode(record) for record in records)
        + garbage
        + b"".join(encode(record) for record in records)
    )
    found, offset, size = [], 0, piece
    while offset < len(data):
        part = data[offset : offset + size]
        got = scan(part, offset, whole=offset + len(part) >= len(data))
        size = piece if got.rest > offset else size + piece
        found += got.placed
        offset = got.rest
    assert found == list(scan(data).placed)


async def test_many_appends_share_a_sync(tmp_path: Path) -> None:
    """200 at once take a few syncs, and the event loop goes on meanwhile."""
    async with opened(tmp_path) as spool:
        commits = []
        real = spool._appender.commit
        spool._appender.commit = lambda frames: (
            time.sleep(0.02),
            commits.append(len(frames)),
            real(frames),
        )[2]  # type: ignore[method-assign]
        longest = 0.0

        async def look() -> None:
            nonlocal longest
            while True:
                before = time.perf_counter()
                await asyncio.sleep(0.001)
                longest = max(longest, time.perf_counter() - before)

        looking = asyncio.create_task(look())
        await asyncio.gather(*(spool.append(event(n)) for n in range(200)))
        looking.cancel()
        assert len(commits) <= 3
        assert [number_of(record) for record in await drained(spool)] == list(range(200))
        assert (spool.records, spool.used_bytes, spool.idle, spool.age_s()) == (0, 0, True, 0.0)
        assert not list(Path(spool.directory).glob("*.seg"))


async def test_a_restart_sends_again_at_most_one_portion(tmp_path: Path) -> None:
    """What was acknowledged is not sent again, but for the portion that was under way."""
    async with opened(tmp_path) as spool:
        await asyncio.gather(*(spool.append(event(n)) for n in range(100)))
        for _ in range(3):
            portion = await spool.read(10)
            assert portion is not None
            await spool.acknowledge(portion, 10)
        portion = await spool.read(10)
    async with opened(tmp_path) as spool:
        assert spool.records == 70
        await spool.append(event(100))
        assert [number_of(record) for record in await drained(spool)] == list(range(30, 101))


async def test_a_torn_last_write_is_cut_off_and_older_damage_quarantined(tmp_path: Path) -> None:
    """Half a frame at the end goes; a flipped byte in an older segment is put aside and counted, and all others are relayed."""
    async with opened(tmp_path, segment_bytes=1000) as spool:
        for n in range(60):
            await spool.append(event(n))
        directory = Path(spool.directory)
    files = sorted(directory.glob("*.seg"))
    assert len(files) >= 3
    first = bytearray(files[0].read_bytes())
    first[len(encode(event(0))) + 30] ^= 0xFF
    files[0].write_bytes(first)
    with files[-1].open("ab") as file:
        file.write(encode(event(99))[:-5])
    async with opened(tmp_path) as spool:
        assert [number_of(record) for record in await drained(spool)] == [0, *range(2, 60)]
        (kept,) = (directory / "quarantine").iterdir()
        assert b"00000001" in kept.read_bytes()
        assert spool.idle


async def test_two_instances_do_not_share_and_the_living_adopt_the_dead(tmp_path: Path) -> None:
    """Each has a directory of its own; what a dead one left is relayed by whoever starts next, from where it had come to."""
    async with opened(tmp_path) as first:
        async with opened(tmp_path) as second:
            assert first.directory != second.directory
            await first.append(event(1))
            for n in (10, 11, 12):
                await second.append(event(n))
            portion = await second.read(1)
            assert portion is not None
            await second.acknowledge(portion, 1)
        async with opened(tmp_path) as third:
            assert third.directory == str(tmp_path / "1")
            assert third.records == 2
            await third.append(event(13))
    async with opened(tmp_path) as heir:
        assert sorted(number_of(record) for record in await drained(heir)) == [1, 11, 12, 13]
    async with opened(tmp_path) as last:
        assert last.records == 0


async def test_what_an_instance_leaves_is_adopted_by_one_that_runs_already(tmp_path: Path) -> None:
    """Behind what it holds itself, before what comes later; a living instance's slot is not touched."""
    async with opened(tmp_path) as heir, opened(tmp_path) as alive:
        await alive.append(event(90))
        await heir.append(event(1))
        async with opened(tmp_path) as dying:
            for n in (10, 11, 12):
                await dying.append(event(n))
            portion = await dying.read(1)
            assert portion is not None
            await dying.acknowledge(portion, 1)
            assert await heir.adopt() == 0
        adopting = asyncio.create_task(heir.adopt())
        await asyncio.gather(*(heir.append(event(n)) for n in (2, 3)))
        assert await adopting == 2
        await heir.append(event(4))
        assert await heir.adopt() == 0
        assert heir.records == 6
        order = [number_of(record) for record in await drained(heir)]
        assert sorted(order) == [1, 2, 3, 4, 11, 12]
        assert order[0] == 1
        assert order[-1] == 4
        assert order.index(11) + 1 == order.index(12)
        assert heir.idle
        assert alive.records == 1
    async with opened(tmp_path) as later:
        assert [number_of(record) for record in await drained(later)] == [90]


async def test_how_long_the_oldest_has_been_waiting_wherever_it_lies(tmp_path: Path) -> None:
    """What was adopted is behind what may be younger: a key that was used in it is not new, whatever is read first."""
    async with opened(tmp_path) as heir:
        assert heir.oldest_at is None
        await heir.append(replace(event(1), at=200.0))
        await heir.append(replace(event(2), at=300.0))
        assert heir.oldest_at == 200.0
        async with opened(tmp_path) as dying:
            await dying.append(replace(event(10), at=100.0))
            await dying.append(replace(event(11), at=150.0))
        await heir.adopt()
        assert heir.oldest_at == 100.0
        portion = await heir.read(1)
        assert portion is not None
        assert heir.oldest_at == 100.0
    async with opened(tmp_path) as later:
        assert later.oldest_at == 100.0
        seen = []
        while (portion := await later.read(1)) is not None:
            seen.append((number_of(portion.records[0]), later.oldest_at))
            await later.acknowledge(portion, 1)
        assert seen == [(1, 100.0), (2, 100.0), (10, 100.0), (11, 150.0)]
        assert later.oldest_at is None
        assert later.age_s() == 0.0


async def test_the_budget_holds(tmp_path: Path) -> None:
    """New work is refused before the budget is used up; an append past it fails; room comes back as segments are relayed."""
    async with opened(tmp_path, budget_bytes=64 * 1024) as spool:
        kept = 0
        with pytest.raises(SpoolFull):
            while True:
                await spool.append(event(kept, size=500))
                kept += 1
        assert 100 < kept < 132
        assert spool.used_bytes <= 64 * 1024
        assert spool.refusal() is not None
        assert len(await drained(spool, 50)) == kept
        await spool.append(event(1))
        assert spool.refusal() is None


async def test_a_disk_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ENOSPC in the middle of a write: that append fails, new work is refused at once, nothing acknowledged is hurt, and it recovers."""
    async with opened(tmp_path) as spool:
        await spool.append(event(1))
        real = os.write

        def full(fd: int, data: bytes) -> int:
            if len(data) > 10:
                return real(fd, bytes(data[:10]))
            raise OSError(errno.ENOSPC, "no space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(segments.os, "write", full)
            patched.setattr("services.gateway.log.spool.SHUT_AFTER_FAILURE_S", 0.1)
            for n in (2, 3):
                with pytest.raises(SpoolFull):
                    await spool.append(event(n, size=21))
            assert "refused" in (spool.refusal() or "")
        await asyncio.sleep(0.15)
        assert spool.refusal() is None
        await spool.append(event(4))
        directory = Path(spool.directory)
        whole = [
            placed.record
            for file in sorted(directory.glob("*.seg"))
            for placed in scan(file.read_bytes()).placed
        ]
        assert [number_of(record) for record in whole] == [1, 4]
        assert [number_of(record) for record in await drained(spool)] == [1, 4]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
async def test_a_full_disk(tmp_path: Path) -> None:
    """A real file system of 1 MiB: clean refusals when it is full, every acknowledged event read back, and on again when there is room."""
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(tmp_path)],
        check=False,
        capture_output=True,
    ).returncode:
        pytest.skip("this machine does not allow mounts")
    try:
        async with opened(tmp_path, budget_bytes=4 << 20, segment_bytes=1 << 17) as spool:
            kept = []
            for n in range(400):
                try:
                    await spool.append(event(n, size=5000))
                except SpoolFull:
                    break
                kept.append(n)
            assert 100 < len(kept) < 210
            assert spool.refusal() is not None
            assert [number_of(record) for record in await drained(spool)] == kept
            await spool.append(event(1))
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


WRITER = """
import asyncio, sys
from pathlib import Path
from services.gateway.domain.segment import Spooled
from services.gateway.spool import Spool

async def client(spool, name):
    n = 0
    while True:
        await spool.append(Spooled(1.0, "reef.inferences.v1", f"s{name}", "", f"{name}:{n}".encode() + b"." * 3000))
        sys.stdout.write(f"{name}:{n}\\n")
        sys.stdout.flush()
        n += 1

async def main():
    spool = Spool(Path(sys.argv[1]), budget_bytes=1 << 30, segment_bytes=1 << 16)
    await spool.open()
    await asyncio.gather(*(client(spool, name) for name in range(16)))

asyncio.run(main())
"""


async def test_kill_9_under_load(tmp_path: Path) -> None:
    """Five processes are killed in the middle of appends: each acknowledged event is there, in order per conversation, and no other."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    draw = random.Random(7)
    acknowledged: list[str] = []
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, env=env
        )
        assert process.stdout is not None
        lines = [process.stdout.readline().decode().strip() for _ in range(50)]
        await asyncio.sleep(draw.uniform(0.05, 0.3))
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.read().decode().split("\n")[:-1]
        process.wait()
        process.stdout.close()
        acknowledged += [line for line in lines if re.fullmatch(r"\d+:\d+", line)]
    async with opened(tmp_path) as spool:
        found = [record.event.rstrip(b".").decode() for record in await drained(spool, 100)]
    missing = set(acknowledged) - set(found)
    assert not missing
    assert len(found) <= len(acknowledged) + 5 * 16
    by_conversation: dict[str, list[int]] = {}
    for name, n in (line.split(":") for line in found):
        by_conversation.setdefault(name, []).append(int(n))
    for numbers in by_conversation.values():
        starts = [0, *(i for i in range(1, len(numbers)) if numbers[i] == 0), len(numbers)]
        runs = [numbers[a:b] for a, b in itertools.pairwise(starts)]
        assert all(run == list(range(len(run))) for run in runs)
