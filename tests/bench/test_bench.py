"""The benches run, and say something. No figure is judged here: that is for a quiet machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import harness

pytestmark = [pytest.mark.broker, pytest.mark.redis, pytest.mark.store]


FIGURES = {
    "gateway": "cpu_ms ratio p50_ms",
    "dialects": "cpu_ms of_chat",
    "ingest": "per_s cpu_us",
    "scale": "cpu_us ratio",
}


def test_benches_write_their_tables(tmp_path: Path):
    """In one process: each would take seconds to start."""
    path = tmp_path / "found.json"
    command = [sys.executable, "-m", "tests.bench", *FIGURES, "--quick", "--json", str(path)]
    done = subprocess.run(
        command,
        cwd=harness.ROOT,
        env=harness.environment(),
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(path.read_text())
    assert found["machine"]["cores"] >= 1
    assert [table["name"] for table in found["tables"]] == [*FIGURES]
    for table in found["tables"]:
        assert table["title"] in done.stdout
        assert table["rows"]
        for row in table["rows"]:
            assert all(row[figure] > 0 for figure in FIGURES[table["name"]].split()), row


def test_an_unknown_bench_is_named_with_those_that_there_are():
    command = [sys.executable, "-m", "tests.bench", "nothing"]
    done = subprocess.run(
        command,
        cwd=harness.ROOT,
        env=harness.environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "no bench is called nothing" in done.stderr
    assert "gateway" in done.stderr


def test_cpu_time_is_that_of_the_whole_tree():
    burn = "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', 'while True: pass'])\ntime.sleep(600)"
    parent = subprocess.Popen([sys.executable, "-c", burn])
    try:
        for _ in range(600):
            before = harness.cpu_s(parent.pid)
            sum(range(2_000_000))
            if harness.cpu_s(parent.pid) - before > 0.01:
                return
        pytest.fail("the child's time was never counted")
    finally:
        for process in [*harness.psutil.Process(parent.pid).children(recursive=True), parent]:
            process.kill()
        parent.wait()
