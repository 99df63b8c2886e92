"""The log of our object store: torn tails, damage, compaction, a full disk, a power cut, one owner."""

import asyncio
import contextlib
import errno
import os
import random
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reefstack.objectstore.errors import Damaged, InUse, NoRoom, Refused
from reefstack.objectstore.frames import frames_of
from reefstack.objectstore.requests import Answer, Request, Requests
from reefstack.objectstore.segments import Segments
from reefstack.objectstore.server import Commits
from reefstack.objectstore.store import Store

SEGMENT = 64 * 1024


def opened(directory: Path, **options: Any) -> Store:
    return Store(Segments(directory, SEGMENT, **options))


def abandoned(store: Store) -> None:
    """As after `kill -9`: files closed, nothing written any more."""
    segments = store._segments
    for segment in segments._segments.values():
        os.close(segment.descriptor)
    os.close(segments._lock)


def content(store: Store) -> dict[str, tuple[bytes, str]]:
    return {key: (store.get(entry), entry.etag) for key, entry in store.index.entries.items()}


def newest(directory: Path) -> Path:
    return max(directory.glob("*.log"))


def frame_ends(directory: Path) -> list[int]:
    """Where each frame of the newest file ends."""
    return [frame.end for frame in frames_of(newest(directory).read_bytes())]


@pytest.mark.parametrize("cut", [1, 7, 30, 47, 48, 60])
def test_a_torn_tail_is_cut_off(tmp_path: Path, cut: int) -> None:
    store = opened(tmp_path)
    for n in range(5):
        store.put(f"k{n}", b"v" * 50)
        store.sync()
    before = content(store)
    store.put("torn", b"t" * 50)
    abandoned(store)
    end = frame_ends(tmp_path)[-1]
    with newest(tmp_path).open("r+b") as file:
        file.seek(end - cut)
        file.write(b"\0" * cut)
    again = opened(tmp_path)
    assert content(again) == before
    again.put("after", b"x")
    again.close()
    assert set(content(opened(tmp_path))) == {*before, "after"}


def test_writes_that_reached_the_disk_out_of_order_are_a_torn_tail(tmp_path: Path) -> None:
    """The first page of an unsynced group is missing, a later one is there."""
    store = opened(tmp_path)
    store.put("synced", b"s")
    store.sync()
    first = frame_ends(tmp_path)[-1]
    for n in range(3):
        store.put(f"group{n}", b"v" * 50)
    abandoned(store)
    with newest(tmp_path).open("r+b") as file:
        file.seek(first)
        file.write(b"\0" * 60)
    again = opened(tmp_path)
    assert set(again.index.entries) == {"synced"}
    again.put("next", b"n")
    again.close()
    assert set(opened(tmp_path).index.entries) == {"synced", "next"}


@pytest.mark.parametrize("closed", [True, False], ids=["closed in order", "killed"])
@pytest.mark.parametrize("victim", [0, 2, 4])
def test_damage_of_synced_bytes_is_named(tmp_path: Path, victim: int, closed: bool) -> None:
    store = opened(tmp_path)
    for n in range(6):
        store.put(f"k{n}", b"v" * 50)
        store.sync()
    store.close() if closed else abandoned(store)
    path, ends = newest(tmp_path), frame_ends(tmp_path)
    with path.open("r+b") as file:
        file.seek(ends[victim] - 20)
        file.write(b"?")
    with pytest.raises(Damaged, match=rf"{path} is damaged from byte .*SKIP_DAMAGE"):
        opened(tmp_path)


def test_damage_that_was_accepted_costs_one_object(tmp_path: Path) -> None:
    store = opened(tmp_path)
    for n in range(6):
        store.put(f"k{n}", b"v" * 50)
        store.sync()
    store.close()
    with newest(tmp_path).open("r+b") as file:
        file.seek(frame_ends(tmp_path)[3] - 20)
        file.write(b"?")
    assert set(opened(tmp_path, skip_damage=True).index.entries) == {
        f"k{n}" for n in (0, 1, 2, 4, 5)
    }


def test_one_directory_has_one_owner(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(InUse, match=f"{tmp_path} is in use"):
        opened(tmp_path)
    first.close()
    opened(tmp_path).close()


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_any_history_reads_back_after_any_end(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Puts, deletes, compactions, restarts and kills, against a dict."""
    lots, directory = random.Random(seed), tmp_path_factory.mktemp("log")
    store, model = opened(directory), {}
    for _ in range(400):
        key = f"k{lots.randrange(30)}"
        match lots.randrange(20):
            case 0:
                store.close() if lots.random() < 0.5 else abandoned(store)
                store = opened(directory)
                assert content(store) == model
            case 1:
                asyncio.run(store.compact())
            case 2 | 3 | 4:
                store.delete(key)
                model.pop(key, None)
            case _:
                value = lots.randbytes(lots.randrange(4000))
                model[key] = (value, store.put(key, value).etag)
    assert content(store) == model
    assert [*store.index.keys] == sorted(model)
    store.close()


def filled(store: Store, rounds: int = 60) -> None:
    for n in range(rounds):
        for key in ("a", "b", "c"):
            store.put(key, bytes([n]) * 3000)


def test_compaction_bounds_the_log(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.put("old", b"kept")
    for _ in range(20):
        filled(store)
        asyncio.run(store.compact())
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 6 * SEGMENT
    assert content(store)["old"][0] == b"kept"


def test_a_file_without_a_frame_is_compacted_too(tmp_path: Path) -> None:
    """The process was killed after it had made the file."""
    (tmp_path / "000000000001.log").write_bytes(b"\0" * SEGMENT)
    store = opened(tmp_path)
    filled(store)
    asyncio.run(store.compact())
    assert not (tmp_path / "000000000001.log").exists()
    assert set(content(store)) == {"a", "b", "c"}


def test_a_compaction_killed_at_any_step_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dies(Exception):
        pass

    for step in range(40):
        directory = tmp_path / str(step)
        store = opened(directory)
        for n in range(12):
            store.put(f"live{n}", b"l" * 1000)
        store.put("deleted", b"d")
        store.delete("deleted")
        filled(store)
        before, left = content(store), step

        def counted(real: Any) -> Any:
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal left
                if not left:
                    raise Dies
                left -= 1
                return real(*args, **kwargs)

            return call

        with monkeypatch.context() as patched:
            for name in ("pwritev", "unlink", "rename", "fdatasync", "fsync", "ftruncate"):
                patched.setattr(os, name, counted(getattr(os, name)))
            try:
                asyncio.run(store.compact())
            except Dies:
                finished = False
            else:
                finished = True
        abandoned(store)
        again = opened(directory)
        assert content(again) == before, f"killed at step {step}"
        asyncio.run(again.compact())
        assert content(again) == before
        again.close()
        if finished:
            assert step > 20
            return
    pytest.fail("it never came to its end")


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, int]:
    """A disk of `limit` bytes for the files in `tmp_path`."""
    disk = {"limit": 8 * SEGMENT}
    real = os.posix_fallocate

    def allocate(descriptor: int, start: int, size: int) -> None:
        used = sum(path.stat().st_size for path in tmp_path.iterdir())
        if used + size > disk["limit"]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(descriptor, start, size)

    monkeypatch.setattr(os, "posix_fallocate", allocate)
    return disk


def test_a_full_disk_refuses_and_goes_on(tmp_path: Path, small_disk: dict[str, int]) -> None:
    store = opened(tmp_path)
    known: dict[str, bytes] = {}
    with contextlib.suppress(NoRoom):
        for n in range(10_000):
            store.put(f"k{n:04}", b"v" * 2000)
            known[f"k{n:04}"] = b"v" * 2000
    assert 100 < len(known) < 1000
    for n in range(100):
        with pytest.raises(NoRoom):
            store.put(f"more{n}", b"v" * 2000)
    assert {key: value for key, (value, _) in content(store).items()} == known
    for key in sorted(known)[: len(known) // 2]:
        store.delete(key)
        del known[key]
    asyncio.run(store.compact())
    store.put("room", b"again")
    known["room"] = b"again"
    abandoned(store)
    again = opened(tmp_path)
    assert {key: value for key, (value, _) in content(again).items()} == known
    small_disk["limit"] *= 2
    for n in range(100):
        again.put(f"more{n}", b"v" * 2000)


def test_overwriting_goes_on_for_ever_on_a_small_disk(
    tmp_path: Path, small_disk: dict[str, int]
) -> None:
    store = opened(tmp_path)
    for n in range(2000):
        try:
            store.put(f"k{n % 7}", b"%d" % n * 500)
        except NoRoom:
            asyncio.run(store.compact())
            store.put(f"k{n % 7}", b"%d" % n * 500)
    assert {value for value, _ in content(store).values()} == {
        b"%d" % n * 500 for n in range(1993, 2000)
    }


FULL = """
import resource, sys
from pathlib import Path
from reefstack.objectstore.errors import NoRoom
from reefstack.objectstore.segments import Segments
from reefstack.objectstore.store import Store
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))
store = Store(Segments(Path(sys.argv[1]), 65536))
store.put("small", b"s" * 1000)
try:
    store.put("large", b"l" * 100_000)
except NoRoom:
    store.put("after", b"a")
    store.close()
    print("held")
"""


def test_a_limit_of_the_kernel_is_a_full_disk(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FULL, tmp_path], capture_output=True, check=False, text=True
    )
    assert done.stdout == "held\n", done.stderr
    assert set(opened(tmp_path).index.entries) == {"small", "after"}
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


@pytest.mark.parametrize("lazily", [[], ["/b/watermark*"]], ids=["all synced", "watermarks lazily"])
async def test_an_answer_outlives_a_power_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lazily: list[str]
) -> None:
    """What was not synced is gone, from any byte on: records that were answered, and all before."""
    store = opened(tmp_path)
    commits = Commits(store, Requests(store, "b"), lazily, within_s=60)
    answered: list[str] = []
    syncs: list[int] = []
    real = os.fdatasync
    monkeypatch.setattr(os, "fdatasync", lambda fd: (syncs.append(fd), real(fd)))

    def ask(key: str, value: bytes) -> asyncio.Future[Answer]:
        done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        commits.submit(Request("PUT", f"/b/{key}", "", {}, value), done.set_result)
        return done

    for n in range(20):
        assert (await ask(f"watermark{n}", b"w")).status == 200
        group = [ask(f"record{n}-{m}", b"r" * 100) for m in range(3)]
        assert all([(await done).status == 200 for done in group])
        answered += [f"watermark{n}", *(f"record{n}-{m}" for m in range(3))]
    assert len(syncs) == (20 if lazily else 40), "one sync a group"
    synced = store._segments._active.synced  # type: ignore[union-attr]
    assert (await ask("watermark-last", b"w")).status == 200
    abandoned(store)
    data = newest(tmp_path).read_bytes()
    for lost_from in (0, 1, 40, 70):
        cut = tmp_path / f"cut{lost_from}"
        cut.mkdir()
        left = data[: synced + lost_from].ljust(len(data), b"\0")
        (cut / newest(tmp_path).name).write_bytes(left)
        assert set(answered) <= set(opened(cut).index.entries)


def test_a_condition_that_fails_writes_nothing(tmp_path: Path) -> None:
    store = opened(tmp_path)
    entry = store.put("k", b"1", if_none_match=True)
    before = store._segments.size
    for condition in ({"if_none_match": True}, {"if_match": '"x"'}):
        with pytest.raises(Refused):
            store.put("k", b"2", **condition)
    with pytest.raises(Refused):
        store.put("new", b"2", if_match=entry.etag)
    assert store._segments.size == before
