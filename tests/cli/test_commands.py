"""The commands against a gateway that answers as the real one does: tables, JSON, errors, tokens, help that teaches."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from typer.testing import CliRunner

from reefcli.main import cli
from reefcli.stack.state import ProcessRecord, StackState, write_state

COMMANDS = ("serve", "status", "releases", "rollback", "promote", "records", "recipes", "topics", "doctor")
REJECTED = [
    {
        "event_id": "e-1",
        "at": "2026-01-01T00:00:00Z",
        "scenario": "default",
        "outcome": "rejected",
        "reason": "the head scored higher",
        "candidate_id": "cand-1",
        "command_id": None,
        "evaluation": {"candidate_score": 0.25, "head_score": 0.5},
    }
]


def release(name: str, *, current: bool = False, parent: str | None = None, **other: Any) -> dict[str, Any]:
    row = {
        "release_id": name,
        "scenario": "default",
        "sequence": 1,
        "parent_id": parent,
        "kind": "lora",
        "content_id": "c-" + name,
        "operation": "training",
        "load_id": "i:1",
        "adapter": None,
        "metrics": {"reward": 0.5},
        "evaluation": None,
        "created_at": "2026-01-01T00:00:00Z",
        "current": current,
        "pending": False,
    }
    return {**row, **other}


CHAIN = [
    release("rel-2", current=True, parent="rel-1", evaluation={"candidate_score": 0.9125, "head_score": 0.5}),
    release("rel-1", operation="creation", kind="base"),
]


@dataclass
class FakeGateway:
    """Answers from a table and remembers what it was asked."""

    url: str = ""
    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    asked: list[tuple[str, str, str, Any]] = field(default_factory=list)


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGateway]:
    fake = FakeGateway()
    fake.answers = {
        "/reef/scenarios": (200, {"data": [{"scenario": "default", "head": CHAIN[0]}]}),
        "/reef/scenarios/default/releases": (200, {"data": CHAIN}),
        "/reef/scenarios/default/rejections": (200, {"data": REJECTED}),
        "/reef/scenarios/default/rollback": (200, release("rel-3", current=True, parent="rel-2", operation="rollback")),
        "/reef/scenarios/default/promote": (200, release("rel-4", current=True, parent="rel-2")),
        "/reef/scenarios/default/records": (
            200,
            {"data": [{"record_id": "rec-1", "at": "2026-01-01T00:00:00Z", "outcome": "ok", "session_id": "s", "duration_ms": 12.5}]},
        ),
        "/reef/records/rec-1": (200, {"record": {"event_id": "rec-1", "request": {"model": "reef"}}, "session_id": "s", "reports": []}),
        "/reef/records/gone": (404, {"error": {"message": "no record gone", "type": "invalid_request_error", "code": "record_not_found"}}),
        "/reef/scenarios/secret/releases": (401, {"error": {"message": "No bearer token.", "type": "x", "code": "no_token"}}),
        "/reef/status": (
            200,
            {
                "services": {
                    "gateway": {"failures": {}, "lag": {"reef.releases.v1": 0}, "last_error": None},
                    "trainer": {"failures": {"http": "does not answer"}},
                },
                "heads": {"default": {"release_id": "rel-2", "operation": "training", "created_at": "2026-01-01T00:00:00Z"}},
                "engines": [],
            },
        ),
    }

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            fake.asked.append((self.command, self.path, self.headers.get("authorization", ""), json.loads(body or b"null")))
            status, value = fake.answers.get(urlsplit(self.path).path, (404, {"error": {"message": "not found"}}))
            payload = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST = answer  # noqa: N815 - the names are the standard library's

        def log_message(self, *_args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    fake.url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setenv("REEF_GATEWAY_URL", fake.url)
    monkeypatch.delenv("REEF_TOKEN", raising=False)
    yield fake
    server.shutdown()
    thread.join()
    server.server_close()


def reef(*words: str, code: int = 0) -> str:
    result = CliRunner().invoke(cli, list(words))
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return result.stdout if code == 0 else result.output


def test_what_was_rejected_and_why(gateway: FakeGateway) -> None:
    lines = [line.split("\t") for line in reef("releases", "default", "--rejected").splitlines()]
    assert lines[0][:2] == ["candidate or command", "outcome"]
    assert (lines[1][0], lines[1][1], lines[1][3], lines[1][4]) == ("cand-1", "rejected", "0.250 (head 0.500)", "the head scored higher")
    assert json.loads(reef("releases", "--rejected", "--json")) == REJECTED


def test_releases_in_a_pipe_are_plain_columns_and_as_json_the_gateways_own_rows(gateway: FakeGateway) -> None:
    lines = [line.split("\t") for line in reef("releases", "default", "--limit", "7").splitlines()]
    assert lines[0] == ["release", "", "operation", "kind", "when", "score", "parent"]
    assert lines[1][:4] == ["rel-2", "serving", "training", "lora"]
    assert lines[1][5:] == ["0.912 (head 0.500)", "rel-1"]
    assert gateway.asked[-1][1] == "/reef/scenarios/default/releases?limit=7"
    assert json.loads(reef("releases", "default", "--json")) == CHAIN
    assert reef("releases").splitlines()[1].startswith("default\trel-2\tserving")


@pytest.mark.parametrize(("verb", "served"), [("rollback", "rel-3"), ("promote", "rel-4")])
def test_rollback_and_promote_say_what_serves_then(gateway: FakeGateway, verb: str, served: str) -> None:
    assert f"default now serves {served}" in reef(verb, "default", "rel-1", "--reason", "worse")
    assert gateway.asked[-1] == ("POST", f"/reef/scenarios/default/{verb}", "", {"release_id": "rel-1", "reason": "worse"})
    assert json.loads(reef(verb, "default", "rel-1", "--json"))["release_id"] == served


def test_records_are_listed_filtered_and_shown_in_full(gateway: FakeGateway) -> None:
    assert reef("records").splitlines()[1].startswith("rec-1\t")
    reef("records", "default", "--session", "ses-42")
    assert gateway.asked[-1][1] == "/reef/scenarios/default/records?session=ses-42&limit=20"
    shown = json.loads(reef("records", "show", "rec-1", "--json"))
    assert shown["record"]["event_id"] == "rec-1"
    assert (shown["steps"], shown["releases"]) == ([], [])
    assert "reef: no record gone (HTTP 404)" in reef("records", "show", "gone", code=1)
    assert "which record?" in reef("records", "show", code=1)
    assert "did you mean: reef records show rec-1" in reef("records", "default", "rec-1", code=1)


def sample(name: str, **other: Any) -> dict[str, Any]:
    row = {"sample_id": name, "record_ids": ["rec-1"], "score": 0.5, "untrainable": None, "trained_tokens": 7}
    return {**row, **other}


def test_a_record_tells_its_story_up_to_the_release(gateway: FakeGateway) -> None:
    gateway.answers["/reef/records/rec-1"] = (
        200,
        {
            "record": {
                "type": "inference.recorded.v1",
                "event_id": "rec-1",
                "scenario": "default",
                "at": "2026-01-01T00:00:00Z",
                "outcome": "ok",
                "release_id": "r1-aaaaaa",
                "duration_ms": 41.7,
                "usage": {"prompt_tokens": 3, "completion_tokens": 2, "estimated": False},
                "request": {
                    "messages": [{"role": "user", "content": "Hi"}, {"role": "user", "content": [{"type": "text", "text": "Who?"}]}]
                },
                "response": {"choices": [{"message": {"content": "I am\nReef\u001b[2J"}}]},
            },
            "session_id": "ses-1",
            "session_turn": 2,
            "retry_of": None,
            "reports": [{"report_id": "rep-1", "score": 0.5, "feedback": "good", "state": "joined", "at": "2026-01-01T00:00:00Z"}],
            "samples": [sample("smp-1"), sample("smp-2", untrainable="no_tokens"), sample("smp-3")],
            "refusals": [{"sample_id": "smp-3", "recipe": "a.b:C", "reason": "stale", "lag": 19}],
        },
    )
    old = {"step": 1, "recipe": "a.b:C", "sample_ids": ["smp-0"], "candidate_id": None, "at": "2026-01-01T00:00:00Z"}
    own = {**old, "step": 4, "sample_ids": ["smp-1"], "candidate_id": "cand-4"}
    gateway.answers["/reef/scenarios/default/steps"] = (200, {"data": [own, old], "next_cursor": None})
    born = release("r2-bbbbbb", current=True, candidate_id="cand-4", lineage={"sample_ids": ["smp-1"]})
    gateway.answers["/reef/scenarios/default/releases"] = (200, {"data": [born, *CHAIN]})
    lines = reef("records", "show", "rec-1").splitlines()
    told = {line[:13].strip(): line[13:] for line in lines}
    assert told["question"] == "Who?"
    assert told["answer"] == "I am"
    assert lines[lines.index("answer       I am") + 1] == " " * 13 + "Reef[2J", "no control characters"
    assert told["outcome"] == "ok, 42 ms"
    assert told["tokens"] == "3 in the question, 2 in the answer"
    assert told["release"] == "r1-aaaaaa answered"
    assert told["session"] == "ses-1, turn 2"
    assert told["report"].startswith("score 0.5, “good” (rep-1, ")
    whole = "\n".join(lines)
    assert "smp-1: trainable, 7 tokens, score 0.5" in whole
    assert "smp-2: cannot be trained on: no_tokens" in whole
    assert told["trained on"].startswith("in step 4 of a.b:C, ")
    assert told["trained on"].endswith("; candidate cand-4")
    assert told["went into"].startswith("release r2-bbbbbb, ")
    assert told["went into"].endswith(" (serves now)")
    assert told["refused"] == "by a.b:C: stale (the releases had moved on by 19)"
    assert told["so far"] == "no recipe has used it yet"
    as_json = json.loads(reef("records", "show", "rec-1", "--json"))
    assert as_json["steps"] == [own]
    assert as_json["releases"] == [born]
    gateway.answers["/reef/scenarios/default/releases"] = (200, {"data": CHAIN})
    assert "candidate cand-4, which is not in the chain: rejected, or not judged yet" in reef("records", "show", "rec-1")


def test_older_steps_are_looked_for_page_by_page(gateway: FakeGateway) -> None:
    record = {"record": {"event_id": "rec-1", "scenario": "default"}, "samples": [sample("smp-1")]}
    gateway.answers["/reef/records/rec-1"] = (200, record)
    gateway.answers["/reef/scenarios/default/steps"] = (200, {"data": [], "next_cursor": "job-9"})
    reef("records", "show", "rec-1", "--json")
    asked = [path for _, path, _, _ in gateway.asked if "/steps" in path]
    assert asked[:2] == ["/reef/scenarios/default/steps?limit=1000", "/reef/scenarios/default/steps?limit=1000&cursor=job-9"]
    assert len(asked) == 20


def test_a_report_is_told_as_a_report(gateway: FakeGateway) -> None:
    record = {"type": "feedback.reported.v1", "event_id": "rec-7", "scenario": "default", "references": ["rec-1", "rec-2"], "score": -1.0}
    gateway.answers["/reef/records/rec-7"] = (200, {"record": record, "reports": [], "samples": [], "refusals": []})
    output = reef("records", "show", "rec-7")
    assert "about        rec-1, rec-2" in output
    assert "said         score -1" in output


def test_an_unknown_scenario_is_the_same_error_everywhere_and_errors_name_commands(gateway: FakeGateway) -> None:
    unknown = (404, {"error": {"message": "There is no scenario 'nosuch'."}})
    gateway.answers["/reef/scenarios/nosuch/records"] = (200, {"data": []})
    gateway.answers["/reef/scenarios/nosuch/releases"] = unknown
    assert reef("records", "nosuch", code=1) == reef("releases", "nosuch", code=1)
    message = "Scenario 'default' has no release 'r9'; see /reef/scenarios/default/releases."
    gateway.answers["/reef/scenarios/default/rollback"] = (404, {"error": {"message": message}})
    assert "has no release 'r9'; see `reef releases default`. (HTTP 404)" in reef("rollback", "default", "r9", code=1)
    gateway.answers["/reef/scenarios"] = (503, {"error": {"message": "Try again; /readyz and /reef/status say whether it is."}})
    assert "Try again; `reef status` says whether it is." in reef("releases", code=1)


def test_a_token_goes_along_and_a_missing_one_is_asked_for(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "No bearer token. (HTTP 401). Put a token into $REEF_TOKEN." in reef("releases", "secret", code=1)
    monkeypatch.setenv("REEF_TOKEN", "t0ken")
    reef("releases", "default")
    assert gateway.asked[-1][2] == "Bearer t0ken"


def test_no_gateway_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REEF_GATEWAY_URL", raising=False)
    for command in ("status", "releases", "records"):
        output = reef(command, "--url", "http://127.0.0.1:9", "--state-dir", str(tmp_path), code=1)
        assert "no gateway answers at http://127.0.0.1:9" in output


@pytest.mark.parametrize(
    "words",
    [("status",), ("releases",), ("records",), ("records", "show", "rec-1"), ("rollback", "default", "r1"), ("promote", "default", "r1")],
)
def test_without_a_stack_nobody_else_is_asked(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def never(*_args: object, **_options: object) -> None:
        pytest.fail("somebody was asked")

    monkeypatch.delenv("REEF_GATEWAY_URL", raising=False)
    monkeypatch.setattr(httpx.Client, "request", never)
    output = reef(*words, "--state-dir", str(tmp_path), code=1)
    assert output.strip() == (
        f"reef: no Reef runs on {tmp_path}; start one (reef serve -c serve.yaml --state-dir {tmp_path}), or name one with --url"
    )
    monkeypatch.chdir(tmp_path)
    assert "no Reef runs on .reef; start one (reef serve -c serve.yaml), or" in reef(*words, code=1)
    ended = this_process(phase="ended", urls={"gateway": "http://127.0.0.1:8900"})
    write_state(tmp_path / ".reef", ended)
    assert "no Reef runs on .reef" in reef(*words, code=1), "what an earlier run wrote is not believed"


def test_a_stack_that_is_starting_says_how_far_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REEF_GATEWAY_URL", raising=False)
    me = psutil.Process()
    record = ProcessRecord(pid=me.pid, created=me.create_time())
    planned = ("tansu", "valkey", "gateway")
    state = this_process(
        phase="starting",
        urls={"gateway": "http://127.0.0.1:9"},
        planned=planned,
        ready=("tansu",),
        processes={"tansu": record, "valkey": record},
    )
    write_state(tmp_path, state)
    output = reef("status", "--state-dir", str(tmp_path), code=1)
    assert "starting, 1 of 3 up" in output
    assert f"tansu\tup\t{me.pid}" in output
    assert f"valkey\tstarting\t{me.pid}" in output
    assert "gateway\tstarting" in output
    assert "start one" not in output
    assert "is starting, 1 of 3 up; ask again in a moment" in reef("releases", "--state-dir", str(tmp_path), code=1)


def test_what_learns_is_shown_with_its_step_and_an_error_that_is_over_is_not(gateway: FakeGateway) -> None:
    answer = gateway.answers["/reef/status"][1]
    answer["services"]["gateway"]["last_error"] = "kafka: away"
    answer["services"]["trainer"] = {
        "failures": {},
        "bindings": {
            "default/recipes.sao.recipe:SAORecipe": {
                "state": "waiting for samples",
                "step": 3,
                "samples": {"waiting": 2, "trained": 3},
                "last_metrics": {"reward_mean": 0.25, "critic/loss": 0.1},
                "last_error": "the step process ended",
            }
        },
    }
    answer["services"]["harness"] = {
        "failures": {},
        "recipes": ["support/mine.h:H"],
        "bindings": {"support/mine.h:H": {"samples_waiting": 4, "jobs_awaiting": 1}},
    }
    output = reef("status")
    assert "kafka: away" not in output
    row = "recipes.sao.recipe:SAORecipe\tdefault\twaiting for samples (critic warm-up, 3 steps so far)\t3\t2\t0.25\tthe step process ended"
    assert row in output
    assert "mine.h:H\tsupport\t1 awaiting\t1\t4" in output
    answer["services"]["trainer"]["bindings"]["default/recipes.sao.recipe:SAORecipe"]["last_metrics"]["policy_grad_norm"] = 1.0
    assert "\twaiting for samples\t3" in reef("status")


def test_tables_on_a_terminal_say_whom_they_come_from(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    assert gateway.url not in reef("releases")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert f"from {gateway.url}" in reef("releases")
    assert gateway.url not in reef("releases", "--json")


def test_an_answer_that_is_not_a_gateways_is_said_to_be_so(gateway: FakeGateway) -> None:
    gateway.answers["/reef/scenarios"] = (500, "boom")
    assert "(HTTP 500)" in reef("releases", code=1)


def this_process(**facts: Any) -> StackState:
    me = psutil.Process()
    return StackState(run_id="r", pid=me.pid, created=me.create_time(), started_at=0.0, **facts)


def test_status_shows_the_running_stack_and_what_is_not_ready(gateway: FakeGateway, tmp_path: Path) -> None:
    me = psutil.Process()
    record = ProcessRecord(pid=me.pid, created=me.create_time())
    dead = ProcessRecord(pid=me.pid, created=1.0)
    state = this_process(phase="ready", processes={"tansu": record, "engine": dead}, urls={"gateway": gateway.url})
    write_state(tmp_path, state)
    output = reef("status", "--state-dir", str(tmp_path))
    assert f"tansu\tup\t{me.pid}" in output
    assert "engine\trestarting" in output
    assert "trainer\tnot ready\t0\thttp: does not answer" in output
    found = json.loads(reef("status", "--state-dir", str(tmp_path), "--json"))
    assert found["alive"] == {"tansu": True, "engine": False}
    assert found["gateway"]["heads"]["default"]["release_id"] == "rel-2"


def test_the_gateway_of_the_running_stack_is_found_without_being_told(
    gateway: FakeGateway, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REEF_GATEWAY_URL")
    write_state(tmp_path, this_process(phase="ready", urls={"gateway": gateway.url}))
    assert "rel-2" in reef("releases", "default", "--state-dir", str(tmp_path))


def test_help_lists_everything_and_each_command_teaches_by_example() -> None:
    overview = reef("--help")
    assert all(name in overview for name in COMMANDS)
    for name in COMMANDS:
        assert "Example" in reef(name, "--help")
    assert "No such command" in reef("frobnicate", code=2)
    assert "Missing option" in reef("serve", code=2)
