"""The loop, end to end, on the real embedded stack: experience becomes releases, and everything is still there after a restart."""

import time
from itertools import pairwise
from statistics import fmean

import httpx
import openai
import pytest

from recipes.sao.examples.tiny import tasks
from reefcommon.statistics import independent_seed

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.xdist_group("demo")]


def test_the_demonstration_reaches_its_goal_without_a_failed_request(demonstration):
    summary = demonstration.summary
    assert demonstration.code == 0, summary
    assert summary["heldout_first_interval"][1] < 0.5
    assert summary["heldout_last_interval"][0] >= 0.9, "the lower bound of a fresh measurement"
    assert len({tuple(point["interval"]) for point in summary["heldout_curve"]}) > 3
    assert len(summary["answers_before"]) == len(summary["answers_after"]) == 3
    assert summary["releases_published"] >= 5
    assert summary["failed_requests"] == 0
    assert summary["restarts"] == 0
    kept = {
        name: demonstration.state_dir / name for name in ("reward.png", "demo.log", "demo.json")
    }
    assert min(path.stat().st_size for path in kept.values()) > 1_000


def releases(serving) -> list[dict]:
    return httpx.get(
        f"{serving.url}/reef/scenarios/default/releases", params={"limit": 200}
    ).json()["data"]


def reward(serving, **headers) -> float:
    scores = []
    with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="x", max_retries=0) as client:
        for number, task in enumerate(tasks.HELDOUT):
            answer = client.chat.completions.create(
                model="reef", messages=[{"role": "user", "content": task}], max_tokens=12, n=2, seed=independent_seed("e2e", number),
                extra_headers={"x-reef-capture": "false", **headers},
            )  # fmt: skip
            scores += [tasks.score(task, choice.message.content or "") for choice in answer.choices]
    return fmean(scores)


def test_after_a_restart_the_learned_release_serves_and_the_chain_is_whole(serving, demonstration):
    chain = releases(serving)
    assert [r["sequence"] for r in chain] == list(range(len(chain) - 1, -1, -1)), "no gap, no fork"
    assert all(newer["parent_id"] == older["release_id"] for newer, older in pairwise(chain))
    kept = [f"{r['sequence']}:{r['release_id']}:{r['operation']}" for r in reversed(chain)]
    shown = demonstration.summary["chain"]
    assert kept[: len(shown)] == shown, (
        "what was there is there; a candidate that was on its way may have followed"
    )
    assert reward(serving) >= 0.85


def test_every_release_says_on_what_evidence_it_serves(serving):
    for release in releases(serving):
        if release["operation"] == "training":
            evaluation = release["evaluation"]
            assert evaluation["verdict"] == "select"
            assert evaluation["wins"] > evaluation["losses"]
            assert release["lineage"]["sample_ids"], "what it learned from"


def test_rollback_is_a_new_release_and_serves_within_two_seconds(serving):
    ask = {
        "model": "reef",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": tasks.HELDOUT[0]}],
    }

    def roll_back(client: httpx.Client, release_id: str) -> float:
        """Seconds until a request is answered by the new release, which must be the first one after the call."""
        started = time.monotonic()
        answer = client.post("/reef/scenarios/default/rollback", json={"release_id": release_id})
        assert answer.status_code == 200, answer.text
        reply = client.post("/v1/chat/completions", json=ask)
        took = time.monotonic() - started
        assert reply.headers["x-reef-release-id"] == releases(serving)[0]["release_id"]
        return took

    with httpx.Client(base_url=serving.url, timeout=30) as client:
        # The run before may have left a winner, which is published now.
        deadline = time.monotonic() + 20
        while True:
            served = client.post("/v1/chat/completions", json=ask).headers["x-reef-release-id"]
            before = releases(serving)
            if served == before[0]["release_id"]:
                break
            assert time.monotonic() < deadline, "the head is not what serves"
            time.sleep(0.2)
        first = before[-1]
        back = roll_back(client, first["release_id"])
        after = releases(serving)
        assert len(after) == len(before) + 1
        assert (after[0]["operation"], after[0]["content_id"]) == ("rollback", first["content_id"])
        assert reward(serving) < 0.6, "the untrained model serves again"
        forward = roll_back(client, before[0]["release_id"])
    assert reward(serving) >= 0.85, "and forward again"
    assert min(back, forward) < 2.0, "one of two: a busy machine may delay one"


def test_an_unknown_release_is_refused_and_changes_nothing(serving):
    before = releases(serving)
    answer = httpx.post(
        f"{serving.url}/reef/scenarios/default/rollback",
        json={"release_id": "r99-000000"},
        timeout=30,
    )
    assert answer.status_code == 404
    assert "r99-000000" in answer.json()["error"]["message"]
    assert releases(serving) == before
