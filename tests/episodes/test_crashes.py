"""A host that is killed in the middle of an episode leaves no process, and its folder goes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reefcommon.ids import digest
from reefkit.episodes.folder import MARK, Folder, sweep
from tests.episodes.conftest import ISOLATIONS, Model, left_over


def wait_for(holds: object, seconds: float = 60.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():  # type: ignore[operator]
            return True
        time.sleep(0.05)
    return False


def marked(place: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            # The launcher has the mark alone.
            mark = f"{MARK}={digest('episodes', str(place.resolve()), length=16)}/"
            if str(place).encode() in environment or mark.encode() in environment:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_killed_host_leaves_no_process(model: Model, tmp_path: Path, isolation: str) -> None:
    model.answer = lambda _messages: "fork\nloop"
    words = [sys.executable, "-m", "tests.episodes.host", str(tmp_path), isolation, model.url]
    host = subprocess.Popen(words)
    try:
        assert wait_for(left_over), "the agent has started its own process"
    finally:
        host.kill()
        host.wait()
    assert wait_for(lambda: not left_over() and not marked(tmp_path / "episodes"))
    place = tmp_path / "episodes"
    assert len(list(place.iterdir())) == 1
    assert sweep(place) == 1
    assert list(place.iterdir()) == []


def test_a_start_ends_what_a_dead_host_has_left(tmp_path: Path) -> None:
    place = tmp_path / "episodes"
    live = Folder.make(place)
    dead = Folder(place / "4194399-1-abc")
    dead.work.mkdir(parents=True)
    locked = dead.work / "locked"
    locked.mkdir()
    (locked / "file").write_text("x")
    locked.chmod(0)
    kept, stray = (
        subprocess.Popen(["sleep", "60"], env={MARK: one.mark}, start_new_session=True)
        for one in (live, dead)
    )
    try:
        assert sweep(place) == 2
        assert stray.wait(timeout=10) == -signal.SIGKILL
        assert kept.poll() is None
        assert list(place.iterdir()) == [live.root]
    finally:
        for process in (kept, stray):
            process.kill()
            process.wait()


def test_a_process_id_that_comes_again_is_another_host(tmp_path: Path) -> None:
    place = tmp_path / "episodes"
    root = place / f"{os.getpid()}-1-abc"
    root.mkdir(parents=True)
    assert sweep(place) == 1
    assert not root.exists()
