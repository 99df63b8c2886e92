"""The soak itself, in seconds: samples are taken, verdicts made, nothing acknowledged is lost, the
stop is clean. Growth shows in an hour.

G8: a stop drains; T7: after a stop the same state is there. `make soak MINUTES=60` is the long one.
"""

import json

import pytest

from tests.soak.run import DRAIN_WITHIN_S, Plan, soak

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
CONFIG = "reef:\n  recipe: recipes.sao.recipe:SAORecipe\n  batch_size: 500\nmodel: tiny\nscenarios: [rules]\n"


async def test_a_short_soak_samples_judges_drains_and_finds_every_receipt(tmp_path):
    config = tmp_path / "serve.yaml"
    config.write_text(CONFIG)
    plan = Plan(
        minutes=0.08, rate=12.0, state_dir=tmp_path / "state", every_s=0.6, samples_path=tmp_path / "samples.jsonl", config=config, restart="store"
    )  # fmt: skip
    told: list[float] = []
    outcome = await soak(plan, lambda share, _words: told.append(share))
    samples = [json.loads(line) for line in plan.samples_path.read_text().splitlines()]
    assert len(samples) == outcome.samples >= 4
    assert told == sorted(told)
    for name in ("rss_mb:gateway", "fds:experience", "threads:engine", "disk_mb:objectstore", "redis_keys:all", "rows:trainer.samples",
                 "gauge:reef_sessions_open", "gauge:vllm:num_loras_loaded", "series:gateway"):  # fmt: skip
        assert name in samples[-1], name
    judged = {verdict.name: verdict.word for verdict in outcome.verdicts}
    assert set(judged) == {
        name
        for sample in samples
        for name in sample
        if not name.startswith(("t_s", "requests", "cpu_s:", "count:"))
    }
    assert outcome.counts["answered"] > 5
    assert outcome.counts["reported"] > 0
    assert outcome.failures == []
    assert outcome.receipts == outcome.counts["answered"] + outcome.counts["reported"]
    assert outcome.missing == []
    assert outcome.exit_code == 0
    assert outcome.drain_s < DRAIN_WITHIN_S
    assert outcome.left_over == []
    assert json.dumps(outcome.as_json())
