"""A seeker through the whole stack: it asks, verifies in the sandbox, learns, and its solution can be downloaded, also over a killed host."""

import json
import time

import httpx
import psutil
import pytest

from tests.e2e.conftest import SHORT_SESSIONS, run_reef, start_serving
from tests.e2e.seeking import ROLLOUTS, STEPS

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

CONFIG = """
reef:
  recipe: tests.e2e.seeking:SeekingSAO
  batch_size: 4
  max_staleness: 4
  critic_warmup_steps: 1
model: tiny
"""


def within(seconds, look):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.3)
    raise AssertionError("it did not come to pass")


def test_a_killed_seeker_goes_on_and_its_solution_is_downloaded(tmp_path):
    config = tmp_path / "serve.yaml"
    config.write_text(CONFIG)
    serving = start_serving(
        tmp_path / "state", tmp_path / "serve.log", config, REEF_FREE_PORTS="1", **SHORT_SESSIONS
    )
    try:
        with httpx.Client(base_url=serving.url, timeout=30) as client:

            def rows(kind, **query):
                query = {"limit": 100, **query}
                answer = client.get(f"/reef/scenarios/default/{kind}", params=query)
                return answer.json()["data"]

            def seek():
                services = client.get("/reef/status").json()["services"]
                bindings = services.get("trainer", {}).get("bindings", {})
                return next(iter(bindings.values()), {}).get("seek") or {}

            within(120, lambda: len(rows("records", outcome="ok")) >= 2)
            me = psutil.Process(serving.process.pid)
            (trainer, *_) = [
                child
                for child in me.children(recursive=True)
                if "services.trainer" in " ".join(child.cmdline())
            ]
            trainer.kill()
            within(240, lambda: seek().get("state") == "done")
            solution = within(
                60, lambda: [row for row in rows("releases") if row["kind"] == "solution"]
            )[0]
            answered = rows("records", outcome="ok")
            assert len(answered) == STEPS * ROLLOUTS
            kinds = [row["kind"] for row in rows("releases")]
        to = tmp_path / "best"
        words = ("releases", "default", "--get", solution["release_id"], "--to", str(to))
        fetched = run_reef(*words, "--url", serving.url)
        assert fetched.returncode == 0, fetched.stderr
        history = json.loads((to / "history.json").read_text())
        assert [(step, end) for step, end, _ in history] == [(0, "finished"), (1, "published")]
        receipts = [receipt for _, _, tried in history for receipt, _ in tried]
        assert len(set(receipts)) == STEPS * ROLLOUTS
        assert kinds == ["solution", "lora", "base"]
    finally:
        assert serving.stop() == 0
