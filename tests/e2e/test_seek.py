"""A seeker through the whole stack: it asks, verifies in the sandbox, learns, and its solution can be downloaded, also over a killed host."""

import asyncio
import json
import sqlite3
import time

import httpx
import psutil
import pytest

from recipes.ttt_discover.recipe import TTTDiscoverRecipe
from reefcommon.statistics import independent_seed
from tests.e2e.conftest import SHORT_SESSIONS, run_reef, start_serving
from tests.e2e.seeking import ROLLOUTS, STEPS
from tests.recipes.seeking import FakeSeekContext, World

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

SAO = {
    "recipe": "tests.e2e.seeking:SeekingSAO", "batch_size": 4, "max_staleness": 4,
    "critic_warmup_steps": 1,
}  # fmt: skip
ROWS = {
    "problem": "tests.e2e.seeking:GATED_ROWS", "steps": 2, "groups_per_step": 2,
    "rollouts_per_group": 6, "max_tokens": 18, "allowed_token_ids": [17, 18, 19, 20, 21, 22],
    "verify_in_flight": 1, "policy_lr": 1e-2,
}  # fmt: skip
SEARCH = {"recipe": "recipes.ttt_discover.recipe:TTTDiscoverRecipe", "scenario": "rows", **ROWS}


def unkilled(records):
    """The same search without a stack and without a kill, on the answers of these records; and its questions."""
    recipe = TTTDiscoverRecipe(TTTDiscoverRecipe.knobs_type(**ROWS))
    said = {}
    for record in records:
        key = "-".join(record["tags"][name] for name in ("step", "group", "rollout"))
        seed = independent_seed(recipe.knobs.seed, "rows", key)
        assert seed not in said, "asked twice"
        said[seed] = record["response"]["choices"][0]["message"]["content"]
    world = World(recipe, lambda _prompt, seed: said[seed], scenario="rows")
    asyncio.run(recipe.seek(FakeSeekContext(world)))
    return world.committed["search"], sorted(request["prompt"] for request in world.requests)


def within(seconds, look):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.3)
    raise AssertionError("it did not come to pass")


def test_a_killed_seeker_goes_on_and_its_solution_is_downloaded(tmp_path):
    config, gate = tmp_path / "serve.yaml", tmp_path / "gate"
    config.write_text(json.dumps({"reef": [SAO, SEARCH], "model": "tiny"}))
    serving = start_serving(
        tmp_path / "state", tmp_path / "serve.log", config,
        REEF_FREE_PORTS="1", SEEK_GATE=str(gate), **SHORT_SESSIONS,
    )  # fmt: skip
    try:
        with httpx.Client(base_url=serving.url, timeout=30) as client:

            def rows(kind, scenario="default", **query):
                query = {"limit": 100, **query}
                answer = client.get(f"/reef/scenarios/{scenario}/{kind}", params=query)
                return answer.json()["data"]

            def states():
                services = client.get("/reef/status").json()["services"]
                bindings = services.get("trainer", {}).get("bindings", {})
                return [(row.get("seek") or {}).get("state") for row in bindings.values()]

            def search():
                # The route for people cuts long values.
                with sqlite3.connect(serving.state_dir / "trainer" / "ledger.sqlite") as ledger:
                    found = ledger.execute("select json from state where key = 'search'").fetchone()
                return json.loads(found[0]) if found else {}

            within(120, lambda: len(rows("records", "rows", outcome="ok")) >= 2)
            assert search() == {}, "the grid is verified before the kill"
            me = psutil.Process(serving.process.pid)
            (trainer, *_) = [
                child
                for child in me.children(recursive=True)
                if "services.trainer" in " ".join(child.cmdline())
            ]
            trainer.kill()
            gate.touch()
            within(240, lambda: states() == ["done", "done"])
            solution = within(
                60, lambda: [row for row in rows("releases") if row["kind"] == "solution"]
            )[0]
            answered = rows("records", outcome="ok")
            assert len(answered) == STEPS * ROLLOUTS
            kinds = [row["kind"] for row in rows("releases")]
            tried = rows("records", "rows", outcome="ok")
            records = [
                client.get(f"/reef/records/{row['record_id']}").json()["record"] for row in tried
            ]
            found = search()
        to = tmp_path / "best"
        words = ("releases", "default", "--get", solution["release_id"], "--to", str(to))
        fetched = run_reef(*words, "--url", serving.url)
        assert fetched.returncode == 0, fetched.stderr
        history = json.loads((to / "history.json").read_text())
        assert [(step, end) for step, end, _ in history] == [(0, "finished"), (1, "published")]
        receipts = [receipt for _, _, tried in history for receipt, _ in tried]
        assert len(set(receipts)) == STEPS * ROLLOUTS
        assert kinds == ["solution", "lora", "base"]
        wanted, prompts = unkilled(records)
        assert len(records) == wanted["archive"]["rollouts"] == 24
        assert (
            (found["step"], found["status"])
            == (wanted["step"], wanted["status"])
            == (2, "committed")
        )
        assert found["archive"] == wanted["archive"]
        assert sorted(record["request"]["messages"][-1]["content"] for record in records) == prompts
    finally:
        assert serving.stop() == 0
