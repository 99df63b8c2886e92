"""The commands against a gateway that answers as the real one does: tables, JSON, errors, tokens, help that teaches."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from typer.testing import CliRunner

from reefcli.main import cli
from reefcli.stack.state import ProcessRecord, StackState, write_state

COMMANDS = ("serve", "status", "releases", "rollback", "promote", "records", "recipes", "topics", "doctor")


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
    assert 'request\t{"model":"reef"}' in reef("records", "show", "rec-1")
    assert json.loads(reef("records", "show", "rec-1", "--json"))["record"]["event_id"] == "rec-1"
    assert "reef: no record gone (HTTP 404)" in reef("records", "show", "gone", code=1)
    assert "which record?" in reef("records", "show", code=1)
    assert "did you mean: reef records show rec-1" in reef("records", "default", "rec-1", code=1)


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
        assert "reef serve -c serve.yaml" in output


def test_an_answer_that_is_not_a_gateways_is_said_to_be_so(gateway: FakeGateway) -> None:
    gateway.answers["/reef/scenarios"] = (500, "boom")
    assert "(HTTP 500)" in reef("releases", code=1)


def test_status_shows_the_running_stack_and_what_is_not_ready(gateway: FakeGateway, tmp_path: Path) -> None:
    me = psutil.Process()
    record = ProcessRecord(pid=me.pid, created=me.create_time())
    dead = ProcessRecord(pid=me.pid, created=1.0)
    state = StackState(
        run_id="r", pid=me.pid, created=me.create_time(), started_at=0.0, phase="ready", processes={"tansu": record, "engine": dead}
    )
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
    me = psutil.Process()
    state = StackState(run_id="r", pid=me.pid, created=me.create_time(), started_at=0.0, phase="ready", urls={"gateway": gateway.url})
    write_state(tmp_path, state)
    assert "rel-2" in reef("releases", "default", "--state-dir", str(tmp_path))


def test_help_lists_everything_and_each_command_teaches_by_example() -> None:
    overview = reef("--help")
    assert all(name in overview for name in COMMANDS)
    for name in COMMANDS:
        assert "Example" in reef(name, "--help")
    assert "No such command" in reef("frobnicate", code=2)
    assert "Missing option" in reef("serve", code=2)
