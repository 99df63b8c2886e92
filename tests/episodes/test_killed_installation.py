"""An evaluator that is killed while npm works: the next waits for this npm, and starts no second in the same folder."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

INSTALL = """
import sys
from pathlib import Path
from reefcommon.harness.agent import find_agent
from reefkit.episodes.program import _install
_install(find_agent("pi"), Path(sys.argv[1]))
"""


def test_an_installation_that_outlives_its_evaluator_keeps_its_lock(tmp_path: Path) -> None:
    node = tmp_path / "bin/node"
    node.parent.mkdir()
    node.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/started\nexec sleep 60\n")
    node.chmod(0o755)
    path = f"{node.parent}:{os.environ['PATH']}"
    evaluator = subprocess.Popen(
        [sys.executable, "-c", INSTALL, str(tmp_path)], env={**os.environ, "PATH": path}
    )
    started, end = tmp_path / "started", time.monotonic() + 60
    while not (started.exists() and started.read_text()) and time.monotonic() < end:
        time.sleep(0.02)
    orphan = int(started.read_text())
    evaluator.kill()
    evaluator.wait(10)
    try:
        with (tmp_path / "pi/lock").open("w") as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.kill(orphan, signal.SIGKILL)
