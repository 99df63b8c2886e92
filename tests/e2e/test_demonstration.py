"""The loop, end to end, on the real embedded stack: experience becomes releases, and everything is still there after a restart. Then what the
README says, done to the letter on it: ask, report, see the record, see the releases, roll back, stop, go on. One file, as one worker runs it."""

import json
import re
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import httpx
import openai
import pytest

from recipes.sao.examples.tiny import tasks
from reefcommon.statistics import independent_seed
from tests.e2e.conftest import REEF, ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

README = (ROOT / "README.md").read_text()


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


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands(serving, **replaced: str) -> list[str]:
    """The shell commands of the README as they must be typed for this running Reef: another port, another state directory."""
    lines = re.sub(r"\\\n\s*", "", "\n".join(blocks("bash"))).splitlines()
    found = []
    for line in lines:
        command = line.split("  #")[0].strip()
        for word, value in replaced.items():
            command = command.replace(word, value)
        command = command.replace("http://127.0.0.1:8900", serving.url)
        command = command.replace(".venv/bin/reef", " ".join(REEF))
        found.append(command)
    return [command for command in found if command]


def shell(command: str, serving) -> str:
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=120, cwd=ROOT, check=False,
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "REEF_GATEWAY_URL": serving.url, "HOME": str(Path.home())},
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_a_newcomer_goes_from_a_question_to_a_rollback(serving):
    (snippet,) = blocks("python")
    scope: dict = {}
    exec(snippet.replace("http://127.0.0.1:8900", serving.url), scope)
    scope["client"].close()
    receipt = scope["receipt"]
    assert re.fullmatch(r"rec-[0-9a-f]{32}-[0-9a-f]{4}", receipt)

    chain = httpx.get(f"{serving.url}/reef/scenarios/default/releases").json()["data"]
    typed = commands(serving, RECEIPT=receipt, RELEASE_ID=chain[1]["release_id"])
    # tests/agents runs the installation
    typed = [command for command in typed if "/reef/harness/install" not in command]
    report, *others = [c for c in typed if not c.startswith("make") and " serve " not in c]
    answer = json.loads(shell(report, serving))
    assert answer["request_type"] == "report"

    deadline = time.monotonic() + 30
    story: dict = {}
    while (
        not (story.get("samples") and story["reports"]) and time.monotonic() < deadline
    ):  # the row of the report comes after the sample's
        time.sleep(0.2)
        story = httpx.get(f"{serving.url}/reef/records/{receipt}").json()
    (sample,) = story["samples"]
    assert sample["score"] == 1.0
    assert story["reports"][0]["feedback"] == "just right"

    said = {command: shell(command, serving) for command in others}
    assert len(said) == 6, "records, releases, rollback, status, harness, its install line"
    assert any(receipt in text for text in said.values())
    assert any(f"{serving.url}/reef/harness/install" in text for text in said.values())
    after = httpx.get(f"{serving.url}/reef/scenarios/default/releases").json()["data"]
    assert (after[0]["operation"], after[0]["content_id"]) == ("rollback", chain[1]["content_id"])
    shown = shell(f"{' '.join(REEF)} records show {receipt}", serving)
    assert sample["sample_id"] in shown


def test_the_usual_loop_over_a_stream_works(serving):
    with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="x", max_retries=0) as client:
        stream = client.chat.completions.create(
            model="reef", max_tokens=4, stream=True, messages=[{"role": "user", "content": "Hi"}]
        )
        assert stream.response.headers["x-reef-agent-record-id"].startswith("rec-")
        assert [chunk.choices[0].delta.content for chunk in stream]


def test_every_make_target_of_the_readme_exists():
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^make (\w+)", "\n".join(blocks("bash")), re.MULTILINE):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
