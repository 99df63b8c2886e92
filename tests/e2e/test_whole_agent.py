"""Weights and harness, holds, canaries and other endpoints on one stack, while users ask. At last it is killed."""

import base64
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from reefcommon.harness.files import tree_to_files
from reefcommon.harness.tree import Entry
from reefcommon.routing import RoutingPolicy
from tests.e2e.conftest import SHORT_SESSIONS, Serving, run_reef, start_serving

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

ENVIRONMENT = {"REEF_FREE_PORTS": "1", **SHORT_SESSIONS}
RULES = "recipes.feedback_rules.recipe:FeedbackRulesRecipe"
SAO = {
    "recipe": "recipes.sao.recipe:SAORecipe", "batch_size": 2, "max_staleness": 9,
    "critic_warmup_steps": 1, "requires_harness": "head",
}  # fmt: skip
SPOKEN = {
    "id": "c", "object": "chat.completion", "created": 1, "model": "other",
    "choices": [{
        "index": 0, "finish_reason": "stop",
        "message": {"role": "assistant", "content": "from elsewhere"},
    }],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}  # fmt: skip


class Endpoint(BaseHTTPRequestHandler):
    """`/page/…` answers with a page, anything else with a chat."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        page = self.path.startswith("/page")
        body = b"<html>be back soon</html>" if page else json.dumps(SPOKEN).encode()
        self.send_response(200)
        self.send_header("content-type", "text/html" if page else "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_words: object) -> None:
        pass


@contextmanager
def endpoint() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@dataclass
class Stack:
    serving: Serving
    http: httpx.Client = field(repr=False)

    def ask(self, scenario: str = "default", **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        body = {"max_tokens": 3, "messages": [{"role": "user", "content": "Say something."}]}
        return self.http.post(
            "/v1/chat/completions", json=body, headers={"x-reef-scenario": scenario, **named}
        )

    def receipt(self) -> str:
        answer = self.ask()
        assert answer.status_code == 200, answer.text
        found: str = answer.headers["x-reef-agent-record-id"]
        return found

    def judge(self, receipt: str, score: float) -> None:
        body = {"references": [receipt], "score": score}
        assert self.http.post("/reef/report", json=body).status_code == 202

    def refusals(self, receipt: str) -> set[str]:
        rows = self.http.get(f"/reef/records/{receipt}").json()["refusals"]
        return {row["reason"] for row in rows}

    def chain(self) -> list[dict[str, Any]]:
        rows = self.http.get("/reef/scenarios/default/releases").json()["data"]
        return [row for row in rows if not row["pending"]]

    def pending(self) -> list[str]:
        rows = self.http.get("/reef/scenarios/default/releases").json()["data"]
        return [row["release_id"] for row in rows if row["pending"]]

    def head(self, kind: str, than: int) -> dict[str, Any]:
        """Return the head once it is of this kind and above this number."""
        return within(
            90,
            lambda: next(
                r for r in self.chain()[:1] if (r["kind"], r["sequence"] > than) == (kind, True)
            ),
        )

    def harness(self, text: str, **more: str) -> str:
        """Propose a harness of one rule. Returns the id of the candidate."""
        files = {
            name: base64.b64encode(body).decode()
            for name, body in tree_to_files((Entry("rule", "rules", {"text": text}),)).items()
        }
        body = {"kind": "harness", "files": files, **more}
        answer = self.http.post("/reef/scenarios/default/candidates", json=body)
        assert answer.status_code == 202, answer.text
        found: str = answer.json()["candidate_id"]
        return found

    def said(self, *words: str) -> dict[str, Any]:
        done = run_reef(*words, "--url", self.serving.url, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found


def within(seconds: float, look: Any) -> Any:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if found := look():
                return found
        except (StopIteration, httpx.HTTPError):
            pass
        time.sleep(0.2)
    raise AssertionError("it did not come to pass")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    place = tmp_path_factory.mktemp("agent")
    config = place / "serve.yaml"
    with endpoint() as url, socket.create_server(("127.0.0.1", 0)) as taken:
        closed = taken.getsockname()[1]
        taken.close()  # an endpoint that is away
        models = {
            "page": {"url": f"{url}/page/v1", "model": "m"},
            "away": {"url": f"http://127.0.0.1:{closed}/v1", "model": "m"},
            "spare": {"url": f"{url}/v1", "model": "m"},
        }
        order = {"support": ["page", "away", "spare"], "own": ["away", "page", "served"]}
        config.write_text(
            json.dumps(
                {
                    "model": "tiny",
                    "scenarios": list(order),
                    "reef": [SAO, {"recipe": RULES, "on_stale": "refuse"}],
                    "models": models,
                    "serving": {"upstreams": {**order, "*": ["served"]}},
                    "harness": {"apply": "system_prompt"},
                    "evaluation": {"policy": "always"},
                }
            )
        )
        serving = start_serving(place / "state", place / "serve.log", config, **ENVIRONMENT)
        try:
            with httpx.Client(base_url=serving.url, timeout=60) as http:
                yield Stack(serving, http)
        finally:
            assert serving.stop() == 0


@contextmanager
def users(stack: Stack) -> Iterator[Counter[int]]:
    """Two users that ask all the while. Yields the statuses of their answers."""
    seen: Counter[int] = Counter()
    over = threading.Event()

    def user() -> None:
        while not over.wait(0.05):
            seen[stack.ask().status_code] += 1

    threads = [threading.Thread(target=user) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        over.set()
        for thread in threads:
            thread.join()


def test_weights_and_a_harness_share_a_chain_while_users_ask(stack: Stack) -> None:
    first = within(30, stack.chain)[0]
    with users(stack) as seen:
        early = [stack.receipt() for _ in range(2)]
        for number in range(4):
            stack.judge(stack.receipt(), float(number % 2))
        weights = stack.head("lora", first["sequence"])
        # Made from the release before: only another kind has changed since.
        stack.harness("Be brief.", base_release_id=first["release_id"])
        both = stack.head("harness", weights["sequence"])
        assert both["contents"].keys() == {"base", "lora", "harness"}
        assert both["contents"]["lora"] == weights["contents"]["lora"]
        # The binding of the recipe says `on_stale: refuse`.
        old = first["release_id"]
        late = stack.harness("Be long.", base_release_id=old, recipe="feedback_rules")

        def refusal() -> Any:
            rows = stack.http.get("/reef/scenarios/default/rejections").json()["data"]
            return [row["reason"] for row in rows if row["candidate_id"] == late]

        assert "is the head" in within(60, refusal)[0]
        for receipt in early:
            stack.judge(receipt, 1.0)
            within(60, lambda at=receipt: "old_harness: 0, required 1" in stack.refusals(at))
        for number in range(2):
            stack.judge(stack.receipt(), float(number % 2))
        again = stack.head("lora", both["sequence"])
        assert again["contents"]["harness"] == both["contents"]["harness"]

    def served() -> Any:  # the gateway hears of a head a moment after it has moved
        path = f"/reef/records/{stack.receipt()}"
        record = within(30, lambda: stack.http.get(path).json().get("record"))
        return record if record["release_id"] == again["release_id"] else None

    assert within(30, served)["harness"]["content_id"] == again["contents"]["harness"]
    assert seen.keys() == {200}


def test_sessions_of_a_canary_stay_with_it_over_a_killed_gateway(stack: Stack) -> None:
    tried = stack.chain()[-1]["release_id"]
    asked = ("--share", "0.5", "--tag", "client=beta*")
    head = stack.said("canary", "default", tried, *asked)["release_id"]
    policy = RoutingPolicy(shares={tried: 0.5})
    sessions = [f"session-{number}" for number in range(12)]
    expected = {name: policy.choose("default", name, {}) for name in sessions}
    assert set(expected.values()) == {tried, "head"}

    def answered() -> dict[str, str]:
        found = {
            name: stack.ask(x_reef_tag_session=name).headers["x-reef-release-id"]
            for name in sessions
        }
        assert stack.ask(x_reef_tag_client="beta-7").headers["x-reef-release-id"] == tried
        return {name: "head" if one == head else one for name, one in found.items()}

    assert answered() == expected

    def gateway() -> int:
        state = json.loads((stack.serving.state_dir / "stack.json").read_text())
        pid: int = state["processes"]["gateway"]["pid"]
        return pid

    killed = gateway()
    os.kill(killed, signal.SIGKILL)
    within(60, lambda: gateway() != killed and stack.http.get("/readyz").status_code == 200)
    assert answered() == expected
    rows = stack.http.get("/reef/releases").json()["data"]
    row = next(row for row in rows if row["scenario"] == "default")
    gets = {one["release_id"]: (one["share"], one["rules"]) for one in row["traffic"]}
    assert gets == {tried: (0.5, [{"tag": "client", "value": "beta*"}]), head: (0.5, [])}
    assert row["not_routed"] == {}
    head = stack.said("canary", "default", "--end")["release_id"]
    named = {"x_reef_tag_client": "beta-7", "x_reef_tag_session": sessions[0]}
    within(10, lambda: stack.ask(**named).headers["x-reef-release-id"] == head)


def test_a_held_scenario_keeps_its_release_until_a_person_says_so(stack: Stack) -> None:
    before = stack.chain()[0]
    held = stack.said("hold", "default", "--reason", "until Monday")
    assert held["held"] is not None
    stack.harness("Be polite.")
    (waiting,) = within(60, stack.pending)
    assert stack.chain()[0]["release_id"] == before["release_id"]
    status = stack.http.get("/reef/status").json()
    assert "until Monday" in json.dumps(status)
    assert stack.said("resume", "default")["pending"] == [waiting]
    stack.harness("Be kind.")
    after = stack.head("harness", before["sequence"])
    assert after["release_id"] != waiting


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("scenario", "upstream"), [("support", "spare"), ("own", "")])
def test_an_endpoint_that_answers_a_page_or_is_away_is_passed_over(
    stack: Stack, scenario: str, upstream: str, stream: bool
) -> None:
    body = {"max_tokens": 3, "stream": stream, "messages": [{"role": "user", "content": "Hi"}]}
    named = {"x-reef-scenario": scenario}
    answer = stack.http.post("/v1/chat/completions", json=body, headers=named)
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("x-reef-upstream", "") == upstream
    assert ("from elsewhere" in answer.text) is (upstream == "spare")
    rows = stack.http.get("/reef/status").json()
    assert "be back soon" not in json.dumps(rows)


def test_interrupted_and_killed_it_goes_on_where_it_was(stack: Stack, tmp_path: Path) -> None:
    """Ctrl-C, start; then SIGKILL of the whole stack, start: receipts answer, the chain has lost and changed nothing (a candidate that was
    on its way may have been added), new work is taken."""
    before, first = lasting(stack.chain()), stack.serving
    assert len(before) > 5
    receipts = [stack.receipt()]
    assert first.stop() == 0
    again = start_serving(first.state_dir, tmp_path / "again.log", first.config, **ENVIRONMENT)
    try:
        with httpx.Client(base_url=again.url, timeout=60) as http:
            receipts += [Stack(again, http).receipt() for _ in range(20)]
    finally:
        state = json.loads((first.state_dir / "stack.json").read_text())
        for process in state["processes"].values():
            subprocess.run(["kill", "-9", str(process["pid"])], check=False)
        again.process.send_signal(signal.SIGKILL)
        again.process.wait(30)
    last = start_serving(first.state_dir, tmp_path / "last.log", first.config, **ENVIRONMENT)
    try:
        with httpx.Client(base_url=last.url, timeout=60) as http:
            for receipt in receipts:
                within(60, lambda r=receipt: http.get(f"/reef/records/{r}").status_code == 200)
            stack = Stack(last, http)
            assert lasting(stack.chain())[-len(before) :] == before
            assert stack.receipt() not in receipts
            assert stack.said("releases")
    finally:
        assert last.stop() == 0


def lasting(chain: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """What never changes of each release, newest first."""
    names = ("release_id", "parent_id", "content_id", "operation", "load_id", "created_at")
    return [tuple(row[name] for name in names) for row in chain]
