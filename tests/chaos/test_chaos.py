"""A short run on the real stack. Long ones: `make chaos SEED=… N=…`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SEED, FAULTS = 116, 3  # the broker away; the gateway and the experience service killed together


@pytest.mark.e2e
@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost_and_the_loop_goes_on(tmp_path: Path) -> None:
    """A few kills and an outage under load; the checker reads what clients hold, the log, the
    store, the ledger and the heads.
    """
    report = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "--seed", str(SEED), "--faults", str(FAULTS), "--home", str(tmp_path / "home"), "--json", str(report)],
        cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT / 'libs'}:{ROOT}"}, capture_output=True, text=True, timeout=580, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    found = json.loads(report.read_text())
    assert found["held"]
    assert found["kills"] == FAULTS
    assert found["outages"] == 1
    assert found["counts"]["receipts_acknowledged"] > 20
    assert found["counts"]["reports_acknowledged"] > 20
    assert found["counts"]["steps"] >= 1
