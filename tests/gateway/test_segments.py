"""The spool's files when the machine ends and not only the process, when the disk fails in the middle, and when a mark says nonsense."""

import asyncio
import errno
import zlib
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.gateway.domain.segment import encode, scan
from services.gateway.log import segments
from services.gateway.log.spool import SpoolFull

from .test_spool import drained, event, number_of, opened

FRAME = len(encode(event(0)))


@dataclass
class Disk:
    """What would be left if the power failed now: bytes that were synced, under names that were synced in their directory."""

    synced: dict[Path, bytes] = field(default_factory=dict)
    names: set[Path] = field(default_factory=set)

    def sync(self, fd: int) -> None:
        path = Path(f"/proc/self/fd/{fd}").readlink()
        if path.is_dir():
            self.names = {name for name in self.names if name.parent != path} | set(path.iterdir())
        else:
            self.synced[path] = path.read_bytes()

    def left(self, directory: Path, pattern: str) -> dict[Path, bytes]:
        return {
            path: self.synced.get(path, b"")
            for path in sorted(self.names)
            if path.parent == directory and path.match(pattern)
        }


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(segments.os, "fsync", made.sync)
    monkeypatch.setattr(segments.os, "fdatasync", made.sync)
    return made


async def test_what_was_acknowledged_outlives_a_power_cut(tmp_path: Path, disk: Disk) -> None:
    """Whenever an append returns, its bytes and the name of its file are on the disk, also where a segment has just begun."""
    root = tmp_path / "spool"
    async with opened(root, segment_bytes=3 * FRAME) as spool:
        assert disk.names >= {root, Path(spool.directory)}
        for n in range(10):
            await spool.append(event(n))
            left = disk.left(Path(spool.directory), "*.seg").values()
            assert [
                number_of(placed.record) for data in left for placed in scan(data).placed
            ] == list(range(n + 1))
        assert len(left) == 4


async def test_what_is_put_aside_and_what_is_adopted_outlives_a_power_cut(
    tmp_path: Path, disk: Disk
) -> None:
    """Damage before it is passed over, a cut before anything is written behind it, and a new place before it is relayed from there."""
    async with opened(tmp_path) as first:
        async with opened(tmp_path) as second:
            for n in range(3):
                await second.append(event(n))
            (left,) = Path(second.directory).glob("*.seg")
        data = bytearray(left.read_bytes())
        data[FRAME + 30] ^= 0xFF
        left.write_bytes(bytes(data) + b"torn")
        assert await first.adopt() == 2
        own = Path(first.directory)
        assert list(disk.left(own, "*.seg")) == [own / "000000000001.seg"]
        assert not disk.left(left.parent, "*.seg")
        assert disk.synced[left] == bytes(data), "cut off, and that is synced"
        portion = await first.read(9)
        assert portion is not None
        await first.acknowledge(portion, 2)
        assert list(disk.left(own / "quarantine", "*").values()) == [bytes(data)[FRAME : 2 * FRAME]]


async def test_what_was_refused_does_not_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sync fails after all bytes were written: the caller was told no, so no later start may find the event."""
    monkeypatch.setattr("services.gateway.log.spool.SHUT_AFTER_FAILURE_S", 0.0)
    async with opened(tmp_path) as spool:
        await spool.append(event(0))
        with monkeypatch.context() as patched:
            patched.setattr(segments.os, "fdatasync", _fails)
            for n in (1, 2):
                with pytest.raises(SpoolFull):
                    await spool.append(event(n))
        await spool.append(event(3))
    async with opened(tmp_path) as spool:
        assert [number_of(record) for record in await drained(spool)] == [0, 3]
        assert not (Path(spool.directory) / "quarantine").exists()


async def test_a_segment_whose_name_may_not_last_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as spool:
        with monkeypatch.context() as patched:
            patched.setattr(segments.os, "fsync", _fails)
            with pytest.raises(SpoolFull):
                await spool.append(event(0))
        assert not list(Path(spool.directory).glob("*.seg"))
        await spool.append(event(1))
    async with opened(tmp_path) as spool:
        assert [number_of(record) for record in await drained(spool)] == [1]


async def test_what_comes_after_all_was_relayed_lies_in_a_file_again(tmp_path: Path) -> None:
    """The newest segment is removed too once it is done: the next event must not go into what has no name any more."""
    async with opened(tmp_path) as spool:
        for n in range(3):
            await spool.append(event(n))
            if n < 2:
                assert [number_of(record) for record in await drained(spool)] == [n]
        assert [path.name for path in Path(spool.directory).glob("*.seg")] == ["000000000003.seg"]
    async with opened(tmp_path) as spool:
        assert [number_of(record) for record in await drained(spool)] == [2]


async def test_what_is_not_synced_yet_is_not_relayed(tmp_path: Path) -> None:
    """Its caller may still be told that it was refused; and no portion is larger than was asked for."""
    async with opened(tmp_path) as spool:
        for n in range(3):
            await spool.append(event(n))
        with (Path(spool.directory) / "000000000001.seg").open("ab") as file:
            file.write(encode(event(9)))
        few, all_of_them = await spool.read(2), await spool.read(9)
        assert few is not None
        assert all_of_them is not None
        assert [number_of(record) for record in few.records] == [0, 1]
        assert [number_of(record) for record in all_of_them.records] == [0, 1, 2]


@pytest.mark.parametrize("end", ["in the middle of a frame", "with another checksum"])
async def test_a_mark_that_cannot_be_right_means_that_all_is_sent_again(
    tmp_path: Path, end: str
) -> None:
    """Sent twice is once by effect; passed over would be lost."""
    async with opened(tmp_path) as spool:
        for n in range(3):
            await spool.append(event(n))
        directory = Path(spool.directory)
    value = (2 * FRAME - (end == "in the middle of a frame")).to_bytes(8, "little")
    checksum = zlib.crc32(value) ^ (end == "with another checksum")
    (directory / "000000000001.pos").write_bytes(value + checksum.to_bytes(4, "little"))
    async with opened(tmp_path) as spool:
        assert [number_of(record) for record in await drained(spool)] == [0, 1, 2]


async def test_a_mark_without_its_segment_says_nothing_of_the_next_one_with_that_number(
    tmp_path: Path,
) -> None:
    """A crash in the middle of removing what is relayed leaves the mark; the numbers begin again."""
    async with opened(tmp_path) as spool:
        for n in range(2):
            await spool.append(event(n))
        portion = await spool.read(1)
        assert portion is not None
        await spool.acknowledge(portion, 1)
        directory = Path(spool.directory)
    (directory / "000000000001.seg").unlink()
    for _ in range(2):
        async with opened(tmp_path) as spool:
            if not spool.records:
                for n in (10, 11):
                    await spool.append(event(n))
    async with opened(tmp_path) as spool:
        assert [number_of(record) for record in await drained(spool)] == [10, 11]


async def test_only_the_last_write_of_all_can_be_torn(tmp_path: Path) -> None:
    """A bad end of the newest segment is cut off, once and for all; that of an older one is damage, and is kept for a person."""
    async with opened(tmp_path, segment_bytes=2 * FRAME) as spool:
        for n in range(4):
            await spool.append(event(n))
        directory = Path(spool.directory)
    older, newest = sorted(directory.glob("*.seg"))
    older.write_bytes(older.read_bytes()[:-1] + b"!")
    newest.write_bytes(newest.read_bytes() + b"torn")
    async with opened(tmp_path) as spool:
        assert spool._slot is not None
        assert spool._slot.damaged == 1
        assert newest.stat().st_size == 2 * FRAME
        assert [number_of(record) for record in await drained(spool)] == [0, 2, 3]
        (kept,) = (directory / "quarantine").iterdir()
        assert b"00000001" in kept.read_bytes()


async def test_what_was_adopted_is_remembered_as_far_as_it_was_relayed(tmp_path: Path) -> None:
    """By an heir that dies too before it has relayed any of it."""
    async with opened(tmp_path) as heir:
        async with opened(tmp_path) as dying:
            for n in range(3):
                await dying.append(event(n))
            portion = await dying.read(2)
            assert portion is not None
            await dying.acknowledge(portion, 2)
        assert await heir.adopt() == 1
    async with opened(tmp_path) as last:
        assert [number_of(record) for record in await drained(last)] == [2]


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
async def test_a_disk_that_fails_while_the_dead_are_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Whichever file cannot be moved: what was moved is relayed by this process, the rest by the next look, and nothing is passed over."""
    async with opened(tmp_path) as heir:
        async with opened(tmp_path, segment_bytes=2 * FRAME) as dying:
            for n in range(4):
                await dying.append(event(n))
            portion = await dying.read(1)
            assert portion is not None
            await dying.acknowledge(portion, 1)
        moves, real = [], Path.replace

        def replace(path: Path, target: Path) -> Path:
            moves.append(path)
            if len(moves) == failing:
                raise OSError(errno.EIO, "not now, as asked")
            return real(path, target)

        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", replace)
            try:
                adopted = await heir.adopt()
            except OSError:
                adopted = 0
        assert heir.records == adopted
        for n in (10, 11):
            await heir.append(event(n))
        assert await heir.adopt() == 3 - adopted
    async with opened(tmp_path) as last:
        assert sorted(number_of(record) for record in await drained(last)) in (
            [1, 2, 3, 10, 11],
            [0, 1, 2, 3, 10, 11],
        )


async def test_many_at_once_do_not_use_more_than_there_is(tmp_path: Path) -> None:
    """What is not written yet counts too; an event larger than any frame may be is refused, and hurts nobody."""
    async with opened(tmp_path, budget_bytes=20 * FRAME) as spool:
        done = await asyncio.gather(
            *(spool.append(event(n)) for n in range(50)), return_exceptions=True
        )
        kept = [n for n, failure in enumerate(done) if failure is None]
        assert spool.used_bytes <= 20 * FRAME
        assert kept == list(range(20))
        assert {type(failure) for failure in done[20:]} == {SpoolFull}
        assert [number_of(record) for record in await drained(spool)] == kept


async def test_an_event_that_no_frame_may_hold_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.gateway.domain.segment.MAX_PAYLOAD_BYTES", 100)
    async with opened(tmp_path) as spool:
        with pytest.raises(SpoolFull, match="too large"):
            await spool.append(event(0, size=100))
        await spool.append(event(1))
        assert [number_of(record) for record in await drained(spool)] == [1]


def _fails(_fd: int) -> None:
    raise OSError(errno.EIO, "input/output error")
