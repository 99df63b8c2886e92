"""A damaged job store: one message that says what to do, an exit status, and no traceback."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reefcommon import topics
from reefcommon.errors import BadConfig, Unavailable
from reefkit.jobs.store import JobStore
from tests.recipes.samples import sample

KEY = "default/sao"


def fill(store: JobStore) -> None:
    for number in range(200):
        item = sample(number)
        store.put(KEY, item, (item, topics.SAMPLES), text_only=False)


def read(store: JobStore) -> object:
    return store.window(KEY, 1000)


@pytest.fixture(params=["trainer", "harness"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Any, Path]]:
    """A ledger with samples, all of them in the main file, open; and where it lies."""
    path = tmp_path / request.param / "ledger.sqlite"
    ledger = JobStore(path)
    fill(ledger)
    ledger._db.execute("pragma wal_checkpoint(truncate)")
    yield ledger, path
    ledger.close()


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "header":
        data[:16] = b"garbage".ljust(16)
    elif how == "pages":
        data[4096 * 8 :] = b"\xa5" * (len(data) - 4096 * 8)
    else:
        del data[len(data) // 2 :]
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["header", "pages", "half"])
def test_at_the_start(made: tuple[Any, Path], how: str) -> None:
    ledger, path = made
    ledger.close()
    damage(path, how)
    with pytest.raises(BadConfig, match=r"ledger.sqlite is damaged .*Move .*ledger.sqlite\* aside"):
        type(ledger)(path)
    for one in path.parent.glob("ledger.sqlite*"):
        one.rename(one.with_name(f"aside-{one.name}"))
    type(ledger)(path).close()


def test_while_running(made: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends in order, and its next start refuses the file whatever a quick check sees. No event is given up meanwhile."""
    ledger, path = made
    ended: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda *call: ended.append(call))
    ledger._db.execute("pragma shrink_memory")
    ledger._db.execute("pragma cache_size = 0")
    damage(path, "pages")
    for _ in range(2):
        with pytest.raises(Unavailable, match="is damaged"):
            read(ledger)
        with pytest.raises(Unavailable, match="is damaged"):
            fill(ledger)
    assert ended == [(os.getpid(), signal.SIGTERM)]
    ledger.close()
    path.unlink()
    with pytest.raises(BadConfig, match="is damaged"):
        type(ledger)(path)


def test_a_value_that_is_no_text(made: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """In a page that is whole."""
    ledger, _path = made
    monkeypatch.setattr(os, "kill", lambda *_: None)
    ledger._db.execute("update samples set binding = cast(x'ff' as text) where seq = 3")
    with pytest.raises(Unavailable, match="is damaged"):
        ledger._rows("select binding from samples")


def test_the_process_says_it_and_ends(made: tuple[Any, Path]) -> None:
    ledger, path = made
    ledger.close()
    damage(path, "pages")
    service = path.parent.name
    environment = {
        **os.environ,
        "REEF_STATE_DIR": str(path.parent.parent),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    command = [sys.executable, "-m", f"services.{service}"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2, done.stderr
    assert f"{service} cannot start: {path} is damaged" in done.stderr
    assert "Traceback" not in done.stderr
