"""One demonstration on the tiny model, and after it one `reef serve` on the state that it left: shared by all tests here."""

import gc
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).parents[2]
REEF = (sys.executable, "-m", "reefcli")
CONFIG = ROOT / "recipes" / "sao" / "examples" / "tiny" / "serve.yaml"


@dataclass(frozen=True)
class Demonstration:
    state_dir: Path
    summary: dict
    code: int


@dataclass
class Serving:
    state_dir: Path
    url: str
    process: subprocess.Popen
    log: Path
    config: Path

    def stop(self, how: int = signal.SIGINT, timeout_s: float = 60) -> int:
        self.process.send_signal(how)
        return self.process.wait(timeout_s)


def run_reef(
    *arguments: str, timeout_s: float = 120, **environment: str
) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*REEF, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        cwd=ROOT,
        env={**os.environ, **environment},
        check=False,
    )


# After a kill the broker forgets a consumer after two sessions: 12 s of the product's.
SHORT_SESSIONS = {"REEF_KAFKA_SESSION_TIMEOUT_MS": "2000"}


def start_serving(state_dir: Path, log: Path, config: Path = CONFIG, **environment: str) -> Serving:
    with log.open("w") as output:
        process = subprocess.Popen(
            [*REEF, "serve", "-c", str(config), "--state-dir", str(state_dir)],
            cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **environment},
        )  # fmt: skip
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and process.poll() is None:
        try:
            state = json.loads((state_dir / "stack.json").read_text())
            if (
                state["phase"] == "ready"
                and httpx.get(state["urls"]["gateway"] + "/readyz").status_code == 200
            ):
                return Serving(state_dir, state["urls"]["gateway"], process, log, config)
        except (OSError, ValueError, httpx.HTTPError, KeyError):
            pass
        time.sleep(0.2)
    process.kill()
    pytest.fail(f"reef serve did not become ready:\n{log.read_text()[-3000:]}")


@pytest.fixture(autouse=True)
def leaks_are_blamed_on_the_test_that_made_them():
    """A socket left open is reported when it is collected, which would otherwise be in some later test."""
    yield
    gc.collect()


@pytest.fixture(scope="session")
def demonstration(tmp_path_factory) -> Demonstration:
    state_dir = tmp_path_factory.mktemp("demo") / "state"
    words = ("demo", "--model", "tiny", "--minutes", "10", "--json", "--state-dir", str(state_dir))
    done = run_reef(*words, timeout_s=800)
    lines = done.stdout.strip().splitlines()
    assert lines, done.stderr[-3000:]
    return Demonstration(state_dir, json.loads(lines[-1]), done.returncode)


@pytest.fixture(scope="session")
def serving(demonstration, tmp_path_factory):
    """Reef started again on the state of the demonstration."""
    running = start_serving(demonstration.state_dir, tmp_path_factory.mktemp("serve") / "serve.log")
    yield running
    if running.process.poll() is None:
        assert running.stop() == 0
