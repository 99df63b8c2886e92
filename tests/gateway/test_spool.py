"""The spool alone: acknowledged events survive the process, a damaged file and a full disk."""

import asyncio
import contextlib
import itertools
import os
import random
import re
import signal
import sqlite3
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from services.gateway.domain.log_event import LogEvent
from services.gateway.log.spool import Spool, SpoolFull
from services.gateway.log.spool_file import SpoolFile


def event(number: int, *, size: int = 20, shard: str = "s0") -> LogEvent:
    data = f"{number:08d}".encode().ljust(size, b".")
    return LogEvent("reef.inferences.v1", shard, f"r-{number}", data, time.time())


def number_of(record: LogEvent) -> int:
    return int(record.data[:8])


@contextlib.asynccontextmanager
async def opened(root: Path, *, budget_bytes: int = 1 << 26) -> AsyncIterator[Spool]:
    spool = Spool(root, budget_bytes=budget_bytes)
    await spool.open()
    try:
        yield spool
    finally:
        await spool.close()


async def drained(spool: Spool, limit: int = 7) -> list[LogEvent]:
    """Relay everything, in portions."""
    events: list[LogEvent] = []
    while (portion := await spool.read(limit)) is not None:
        events += portion.events
        await spool.acknowledge(portion)
    return events


async def numbers(spool: Spool) -> list[int]:
    return [number_of(record) for record in await drained(spool)]


class Failing:
    """A connection whose commits or deletes fail as SQLite's would on a bad disk."""

    def __init__(self, db: sqlite3.Connection, error: sqlite3.Error, statement: str) -> None:
        self._db, self._error, self._statement = db, error, statement

    def __enter__(self) -> Any:
        return self._db.__enter__()

    def __exit__(self, *exc: Any) -> Any:
        return self._db.__exit__(*exc)

    def execute(self, sql: str, *arguments: Any) -> Any:
        if sql.startswith(self._statement):
            raise self._error
        return self._db.execute(sql, *arguments)

    def executemany(self, sql: str, rows: Any) -> Any:
        if sql.startswith(self._statement):
            self._db.execute(sql, rows[0])
            raise self._error
        return self._db.executemany(sql, rows)

    def close(self) -> None:
        self._db.close()


@contextlib.contextmanager
def failing(spool: Spool, words: str, statement: str = "insert") -> Any:
    """Statements fail with these words; the first row of an insert was written by then."""
    file = spool._own
    assert file is not None
    assert file._db is not None
    sound, file._db = file._db, Failing(file._db, sqlite3.OperationalError(words), statement)  # type: ignore[assignment]
    try:
        yield
    finally:
        if file._db is not None:
            file._db = sound


async def test_many_appends_share_a_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """200 at once take a few transactions, and the event loop goes on meanwhile."""
    commits, append = [], SpoolFile.append

    def slow(file: SpoolFile, events: list[LogEvent]) -> float:
        time.sleep(0.02)
        commits.append(len(events))
        return append(file, events)

    monkeypatch.setattr(SpoolFile, "append", slow)
    async with opened(tmp_path) as spool:
        await asyncio.gather(*(spool.append(event(n)) for n in range(200)))
        assert len(commits) <= 3
        assert await numbers(spool) == list(range(200))
        assert (spool.records, spool.used_bytes, spool.idle, spool.age_s()) == (0, 0, True, 0.0)
        assert not list(Path(spool.directory).glob("spool.db*"))


async def test_a_restart_sends_no_acknowledged_event_again(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        await asyncio.gather(*(spool.append(event(n)) for n in range(100)))
        for _ in range(3):
            portion = await spool.read(10)
            assert portion is not None
            await spool.acknowledge(portion)
        portion = await spool.read(10)
    async with opened(tmp_path) as spool:
        assert spool.records == 70
        await spool.append(event(100))
        assert await numbers(spool) == list(range(30, 101))


async def test_every_field_of_an_event_comes_back(tmp_path: Path) -> None:
    whole = LogEvent("t.v1", "s-é", "r-1", b"\x00\xff{}", 12.5, "00-a-b-01")
    async with opened(tmp_path) as spool:
        await spool.append(whole)
    async with opened(tmp_path) as spool:
        assert await drained(spool) == [whole]


async def test_a_portion_is_bounded_and_never_empty(tmp_path: Path) -> None:
    async with opened(tmp_path) as spool:
        for n, size in enumerate((3 << 20, 700_000, 700_000, 10)):
            await spool.append(event(n, size=size))
        sizes = []
        while (portion := await spool.read(100)) is not None:
            sizes.append(len(portion.events))
            await spool.acknowledge(portion)
        assert sizes == [1, 2, 1]


@pytest.mark.parametrize("place", [0, 4 * 4096], ids=["head", "middle"])
async def test_a_damaged_file_is_put_aside_and_named(
    tmp_path: Path, place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    async with opened(tmp_path) as spool:
        for n in range(60):
            await spool.append(event(n, size=300))
        path = Path(spool.directory) / "spool.db"
    data = bytearray(path.read_bytes())
    data[place : place + 3000] = b"\xff" * 3000
    path.write_bytes(bytes(data))
    async with opened(tmp_path) as spool:
        await spool.append(event(99))
        assert await numbers(spool) == [99]
    (kept,) = (path.parent / "quarantine").iterdir()
    assert (kept / "spool.db").read_bytes() == bytes(data)
    assert str(kept) in "".join(capsys.readouterr())


async def test_damage_seen_in_use_costs_no_new_event(tmp_path: Path) -> None:
    """The event is written to a new file; a portion of the old one removes no row of it."""
    async with opened(tmp_path) as spool:
        for n in range(3):
            await spool.append(event(n))
        old = await spool.read(10)
        assert old is not None
        with failing(spool, "database disk image is malformed"):
            error = sqlite3.DatabaseError("database disk image is malformed")
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            spool._own._db._error = error  # type: ignore[union-attr]
            await spool.append(event(7))
            spool._own._db = spool._own._db  # type: ignore[union-attr]
        await spool.acknowledge(old)
        assert spool.records == 1


async def test_the_living_adopt_the_files_of_the_dead(tmp_path: Path) -> None:
    """Each has its own; the next to start relays a dead one's, from where it had come to."""
    async with opened(tmp_path) as first:
        async with opened(tmp_path) as second:
            assert first.directory != second.directory
            await first.append(event(1))
            for n in (10, 11, 12):
                await second.append(event(n))
            portion = await second.read(1)
            assert portion is not None
            await second.acknowledge(portion)
        async with opened(tmp_path) as third:
            assert third.directory == str(tmp_path / "1")
            assert third.records == 2
            await third.append(event(13))
    async with opened(tmp_path) as heir:
        assert sorted(await numbers(heir)) == [1, 11, 12, 13]
    async with opened(tmp_path) as last:
        assert last.records == 0


async def test_a_running_instance_adopts_too(tmp_path: Path) -> None:
    """A living instance's file is not touched; an adopted one is given up when it is empty."""
    async with opened(tmp_path) as heir, opened(tmp_path) as alive:
        await alive.append(event(90))
        await heir.append(event(1))
        async with opened(tmp_path) as dying:
            for n in (10, 11, 12):
                await dying.append(event(n))
            assert await heir.adopt() == 0
        adopting = asyncio.create_task(heir.adopt())
        await asyncio.gather(*(heir.append(event(n)) for n in (2, 3)))
        assert await adopting == 3
        await heir.append(event(4))
        assert await heir.adopt() == 0
        assert heir.records == 7
        order = await numbers(heir)
        assert sorted(order) == [1, 2, 3, 4, 10, 11, 12]
        assert [n for n in order if n >= 10] == [10, 11, 12]
        assert [n for n in order if n < 10] == [1, 2, 3, 4]
        assert heir.idle
        assert alive.records == 1
        async with opened(tmp_path) as next_one:
            assert next_one.directory == str(tmp_path / "2")
    async with opened(tmp_path) as later:
        assert await numbers(later) == [90]


async def test_a_heir_that_dies_leaves_both_files(tmp_path: Path) -> None:
    async with opened(tmp_path) as keeps_slot_0:
        async with opened(tmp_path) as dying:
            await dying.append(event(10))
        async with opened(tmp_path, budget_bytes=1 << 20) as heir:
            await heir.append(event(20))
            assert await keeps_slot_0.adopt() == 0
        assert await keeps_slot_0.adopt() == 2
        assert await numbers(keeps_slot_0) == [10, 20]


async def test_the_oldest_counts_wherever_it_lies(tmp_path: Path) -> None:
    async with opened(tmp_path) as heir:
        assert heir.oldest_at is None
        await heir.append(event(1)._replace(at=200.0))
        await heir.append(event(2)._replace(at=300.0))
        assert heir.oldest_at == 200.0
        async with opened(tmp_path) as dying:
            await dying.append(event(10)._replace(at=100.0))
            await dying.append(event(11)._replace(at=150.0))
        await heir.adopt()
        assert heir.oldest_at == 100.0
    async with opened(tmp_path) as later:
        assert later.oldest_at == 100.0
        seen = []
        while (portion := await later.read(1)) is not None:
            seen.append((number_of(portion.events[0]), later.oldest_at))
            await later.acknowledge(portion)
        assert seen == [(10, 100.0), (11, 150.0), (1, 200.0), (2, 300.0)]
        assert later.oldest_at is None
        assert later.age_s() == 0.0


async def test_the_budget_holds(tmp_path: Path) -> None:
    """New requests are refused before it is used up; an append past it fails; room comes back."""
    async with opened(tmp_path, budget_bytes=64 * 1024) as spool:
        kept = 0
        with contextlib.suppress(SpoolFull):
            while True:
                await spool.append(event(kept, size=500))
                kept += 1
        assert 100 < kept < 132
        assert spool.used_bytes <= 64 * 1024
        assert spool.refusal() is not None
        assert len(await drained(spool, 50)) == kept
        await spool.append(event(1))
        assert spool.refusal() is None


async def test_many_at_once_do_not_use_more_than_there_is(tmp_path: Path) -> None:
    async with opened(tmp_path, budget_bytes=64 * 1024) as spool:
        results = await asyncio.gather(
            *(spool.append(event(n, size=1000)) for n in range(100)), return_exceptions=True
        )
        kept = [n for n, result in enumerate(results) if result is None]
        assert kept == list(range(len(kept)))
        assert 40 < len(kept) < 66
        assert spool.used_bytes <= 64 * 1024
        assert await numbers(spool) == kept


@pytest.mark.parametrize("words", ["database or disk is full", "disk I/O error"])
async def test_a_disk_that_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Those appends fail whole, new requests are refused at once, and it recovers."""
    monkeypatch.setattr("services.gateway.log.spool.REFUSE_AFTER_FAILURE_S", 0.1)
    async with opened(tmp_path) as spool:
        await spool.append(event(1))
        with failing(spool, words):
            results = await asyncio.gather(
                *(spool.append(event(n)) for n in (2, 3)), return_exceptions=True
            )
            assert all(isinstance(result, SpoolFull) for result in results)
            assert words in (spool.refusal() or "")
        await asyncio.sleep(0.15)
        assert spool.refusal() is None
        await spool.append(event(4))
    async with opened(tmp_path) as spool:
        assert await numbers(spool) == [1, 4]


async def test_a_full_disk_does_not_keep_events_from_leaving(tmp_path: Path) -> None:
    """Removing rows needs space too: until there is some, the events are not read twice."""
    async with opened(tmp_path) as spool:
        for n in range(9):
            await spool.append(event(n))
        with failing(spool, "database or disk is full", "delete"):
            portion = await spool.read(4)
            assert portion is not None
            await spool.acknowledge(portion)
            assert spool.records == 5
            assert await numbers(spool) == [4, 5, 6, 7, 8]
        assert not list(Path(spool.directory).glob("spool.db*"))
        await spool.append(event(9))
        assert await numbers(spool) == [9]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
async def test_a_full_disk(tmp_path: Path) -> None:
    """A real file system of 6 MiB: clean refusals, every acknowledged event, then on again."""
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(tmp_path)],
        check=False,
        capture_output=True,
    ).returncode:
        pytest.skip("this machine does not allow mounts")
    try:
        async with opened(tmp_path, budget_bytes=64 << 20) as spool:
            kept = []
            for n in range(2000):
                try:
                    await spool.append(event(n, size=5000))
                except SpoolFull:
                    break
                kept.append(n)
            assert 300 < len(kept) < 1200
            assert spool.refusal() is not None
            assert await numbers(spool) == kept
            await spool.append(event(1))
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


WRITER = """
import asyncio, sys
from pathlib import Path
from services.gateway.domain.log_event import LogEvent
from services.gateway.log.spool import Spool

async def client(spool, name):
    n = 0
    while True:
        data = f"{name}:{n}".encode() + b"." * 3000
        await spool.append(LogEvent("reef.inferences.v1", f"s{name}", "r", data, 1.0))
        sys.stdout.write(f"{name}:{n}\\n")
        sys.stdout.flush()
        n += 1

async def main():
    spool = Spool(Path(sys.argv[1]), budget_bytes=1 << 30)
    await spool.open()
    await asyncio.gather(*(client(spool, name) for name in range(16)))

asyncio.run(main())
"""


async def test_kill_9_under_load(tmp_path: Path) -> None:
    """Five processes are killed while they append: each acknowledged event is there, in order."""
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
        found = [record.data.rstrip(b".").decode() for record in await drained(spool, 100)]
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


def old_frame(number: int) -> bytes:
    """A frame of the former segment files."""
    topic, shard = b"reef.inferences.v1", b"s0"
    data = b'{"event_id":"r-%d","n":"%08d"}' % (number, number)
    payload = (
        struct.pack("<dHHH", 5.0 + number, len(topic), len(shard), 2) + topic + shard + b"tp" + data
    )
    checksum = zlib.crc32(payload, zlib.crc32(len(payload).to_bytes(4, "little")))
    return b"\xf5\xfeR\xc0" + struct.pack("<II", len(payload), checksum) + payload


async def test_a_spool_of_the_former_format_is_taken_over(tmp_path: Path) -> None:
    """From where its marks say, past a damaged place and a torn end, own and foreign; once."""
    for slot, numbers_of in (("0", range(6)), ("1", range(6, 9))):
        (tmp_path / slot).mkdir()
        first, *rest = [old_frame(n) for n in numbers_of]
        (tmp_path / slot / "000000000001.seg").write_bytes(first + b"".join(rest[:2]))
        mark = len(first).to_bytes(8, "little")
        (tmp_path / slot / "000000000001.pos").write_bytes(
            mark + zlib.crc32(mark).to_bytes(4, "little")
        )
        damaged = bytearray(b"".join(rest[2:]))
        if damaged:
            damaged[30] ^= 0xFF
        (tmp_path / slot / "000000000002.seg").write_bytes(bytes(damaged) + old_frame(99)[:-4])
    async with opened(tmp_path) as spool:
        assert spool.records == 6
    async with opened(tmp_path) as spool:
        events = await drained(spool)
        assert sorted(event.event_id for event in events) == [
            "r-1", "r-2", "r-4", "r-5", "r-7", "r-8",
        ]  # fmt: skip
        assert (events[0].traceparent, events[0].shard) == ("tp", "s0")
    assert not list(tmp_path.rglob("*.seg"))
