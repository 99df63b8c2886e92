"""What the README says, done to the letter on a running Reef: ask, report, see the record, see the releases, roll back, stop, go on."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import REEF, ROOT, SHORT_SESSIONS, run_reef, start_serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600), pytest.mark.xdist_group("demo")]

README = (ROOT / "README.md").read_text()


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
    assert len(said) == 5, "records, releases, rollback, status, harness"
    assert any(receipt in text for text in said.values())
    after = httpx.get(f"{serving.url}/reef/scenarios/default/releases").json()["data"]
    assert (after[0]["operation"], after[0]["content_id"]) == ("rollback", chain[1]["content_id"])
    shown = shell(f"{' '.join(REEF)} records show {receipt}", serving)
    assert sample["sample_id"] in shown


def test_the_usual_loop_over_a_stream_works(serving):
    import openai

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


def chain(url: str) -> list[tuple[str, ...]]:
    """What never changes of each release, newest first."""
    rows = httpx.get(f"{url}/reef/scenarios/default/releases").json()["data"]
    return [
        tuple(
            row[name]
            for name in (
                "release_id",
                "parent_id",
                "content_id",
                "operation",
                "load_id",
                "created_at",
            )
        )
        for row in rows
    ]


def test_interrupted_and_killed_it_goes_on_where_it_was(serving, tmp_path):
    """Ctrl-C, start; then SIGKILL of the whole stack, start: receipts answer, the chain has lost and changed nothing (a candidate that was
    on its way may have been added), new work is taken."""
    before = chain(serving.url)
    ask = {
        "model": "reef",
        "max_tokens": 2,
        "messages": [{"role": "user", "content": "still there?"}],
    }
    receipts = [
        httpx.post(f"{serving.url}/v1/chat/completions", json=ask, timeout=60).headers[
            "x-reef-agent-record-id"
        ]
    ]
    assert serving.stop() == 0
    again = start_serving(serving.state_dir, tmp_path / "again.log", **SHORT_SESSIONS)
    try:
        answers = [
            httpx.post(f"{again.url}/v1/chat/completions", json=ask, timeout=60) for _ in range(20)
        ]
        assert [a.text for a in answers if a.status_code != 200] == []
        receipts += [a.headers["x-reef-agent-record-id"] for a in answers]
    finally:
        state = json.loads((serving.state_dir / "stack.json").read_text())
        for process in state["processes"].values():
            subprocess.run(["kill", "-9", str(process["pid"])], check=False)
        again.process.send_signal(signal.SIGKILL)
        again.process.wait(30)
    last = start_serving(serving.state_dir, tmp_path / "last.log", **SHORT_SESSIONS)
    try:
        deadline = time.monotonic() + 60
        missing = set(receipts)
        while missing and time.monotonic() < deadline:
            missing = {
                r for r in missing if httpx.get(f"{last.url}/reef/records/{r}").status_code != 200
            }
            time.sleep(0.5)
        assert missing == set(), "an acknowledged receipt is lost"
        assert chain(last.url)[-len(before) :] == before
        assert (
            httpx.post(f"{last.url}/v1/chat/completions", json=ask, timeout=60).status_code == 200
        )
        shown = run_reef("releases", "--json", REEF_GATEWAY_URL=last.url)
        assert shown.returncode == 0, shown.stderr
    finally:
        assert last.stop() == 0
