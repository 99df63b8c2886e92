"""`reef status`, and how commands find the stack that runs, or say that none does."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import psutil
import pytest

from reefstack.state import ProcessRecord, write_state
from tests.cli.fake_gateway import FakeGateway, reef, this_process


def test_no_gateway_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("REEF_GATEWAY_URL", raising=False)
    for command in ("status", "releases", "records"):
        output = reef(command, "--url", "http://127.0.0.1:9", "--state-dir", str(tmp_path), code=1)
        assert "no gateway answers at http://127.0.0.1:9" in output


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("releases",),
        ("records",),
        ("records", "show", "rec-1"),
        ("rollback", "default", "r1"),
        ("promote", "default", "r1"),
    ],
)
def test_without_a_stack_nobody_else_is_asked(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
    assert "no Reef runs on .reef" in reef(*words, code=1), (
        "what an earlier run wrote is not believed"
    )


def test_a_stack_that_is_starting_says_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
    assert "is starting, 1 of 3 up; ask again in a moment" in reef(
        "releases", "--state-dir", str(tmp_path), code=1
    )


def test_what_learns_is_shown_with_its_step_and_an_error_that_is_over_is_not(
    gateway: FakeGateway,
) -> None:
    answer = gateway.answers["/reef/status"][1]
    answer["services"]["gateway"]["last_error"] = "kafka: away"
    answer["services"]["trainer"] = {
        "failures": {},
        "bindings": {
            "default/recipes.sao.recipe:SAORecipe": {
                "state": "waiting for samples",
                "step": 3,
                "knobs": {"critic_warmup_steps": 10},
                "samples": {"waiting": 2, "trained": 3},
                "last_metrics": {"reward_mean": 0.25, "critic/loss": 0.1},
                "last_error": "the step process ended\nTraceback of it",
                "last_error_at": (datetime.now(UTC) - timedelta(hours=3)).isoformat(),
            }
        },
    }
    answer["services"]["harness"] = {
        "failures": {},
        "bindings": {
            "support/mine.h:H": {
                "state": "waiting for the verdict on its candidate",
                "proposed_at": (datetime.now(UTC) - timedelta(minutes=4)).isoformat(),
                "step": 1,
                "samples": {"waiting": 4},
            }
        },
    }
    output = reef("status")
    assert "kafka: away" not in output
    row = "recipes.sao.recipe:SAORecipe\tdefault\twaiting for samples (critic warm-up, 3 of 10 steps)\t3\t2\t0.25\tthe step process ended (3 h ago; may be over)"
    assert row in output
    assert (
        "mine.h:H\tsupport\twaiting for the verdict on its candidate (proposed 4 min ago)\t1\t4"
        in output
    )
    answer["services"]["trainer"]["bindings"]["default/recipes.sao.recipe:SAORecipe"][
        "last_metrics"
    ]["policy_grad_norm"] = 1.0
    assert "\twaiting for samples\t3" in reef("status")


def test_what_cannot_change_and_what_a_candidate_waits_for_is_said(gateway: FakeGateway) -> None:
    answer = gateway.answers["/reef/status"][1]
    head = answer["heads"]["default"]
    answer["heads"] = {"default": {**head, "learns": True}, "relay": {**head, "learns": False}}
    reason = "3 of 5 held-out samples are there"
    since = (datetime.now(UTC) - timedelta(minutes=3)).isoformat()
    waits = {"scenario": "default", "candidate_id": "cand-7", "reason": reason, "since": since}
    answer["services"]["evaluator"] = {"failures": {}, "waiting_for": [waits]}
    lines = reef("status").splitlines()
    assert f"cand-7\tdefault\t{reason}\t3 min ago" in lines
    notes = {line.split("\t")[0]: line.split("\t")[4] for line in lines if "rel-2" in line}
    assert notes == {"default": "", "relay": "nothing learns here"}
    early = "more reports are needed: 3 of 20 prompts"
    answer["services"]["evaluator"]["held_out"] = {"default": early, "relay": early}
    lines = reef("status").splitlines()
    assert "(none yet)\trelay\tmore reports are needed: 3 of 20 prompts\t" in lines
    assert not any(line.startswith("(none yet)\tdefault") for line in lines)
    del answer["services"]["evaluator"]
    assert "waits for" not in reef("status")
    answer["heads"]["default"] |= {"pending": ["rel-9", "rel-8"]}
    assert "rel-9 waits for a person: reef promote default rel-9" in reef("status")
    answer["heads"]["default"] |= {"held": "until Monday", "learns": True}
    assert "held (until Monday): reef resume default; rel-9 waits for a person" in reef("status")
    rules = [{"tag": "client", "value": "beta"}]
    traffic = {"rel-2": {"share": 0.9, "rules": []}, "rel-9": {"share": 0.1, "rules": rules}}
    answer["heads"]["default"] |= {"traffic": traffic}
    canary = "canary: rel-9 gets 10 % client=beta: reef canary default --end"
    assert f"reef promote default rel-9; {canary}" in reef("status")
    answer["heads"]["default"]["traffic"] = {"rel-2": {"share": 0.0}, "rel-9": {"share": 1.0}}
    assert "canary: rel-9 gets 100 %: reef canary default --end" in reef("status")
    answer["heads"]["default"] |= {"held": "", "pending": [], "traffic": {}}
    assert "held: reef resume default" in reef("status")


def test_a_scenario_is_held_and_resumed(gateway: FakeGateway) -> None:
    path = "/reef/scenarios/default"
    gateway.answers[f"{path}/hold"] = (
        200, {"scenario": "default", "held": "x", "pending": ["rel-9", "rel-8"]}
    )  # fmt: skip
    gateway.answers[f"{path}/resume"] = (200, {"scenario": "default", "held": None, "pending": []})
    said = reef("hold", "default", "--reason", "x")
    assert said.startswith(
        "default is held: winners wait for a person; 2 releases wait, the newest"
    )
    assert "default is not held: the next winner serves" in reef("resume", "default")
    assert [asked[3] for asked in gateway.asked] == [{"reason": "x"}, {}]
    assert json.loads(reef("hold", "default", "--json"))["held"] == "x"


def test_status_shows_the_running_stack_and_what_is_not_ready(
    gateway: FakeGateway, tmp_path: Path
) -> None:
    me = psutil.Process()
    record = ProcessRecord(pid=me.pid, created=me.create_time())
    dead = ProcessRecord(pid=me.pid, created=1.0)
    urls = {"gateway": gateway.url, "kafka": "127.0.0.1:16461"}
    state = this_process(phase="ready", processes={"tansu": record, "engine": dead}, urls=urls)
    write_state(tmp_path, state)
    output = reef("status", "--state-dir", str(tmp_path))
    assert f"tansu\tup\t{me.pid}\t127.0.0.1:16461" in output
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


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ('KeyError at mine.py:12\n  File "/x/mine.py", line 12, in step', "KeyError at mine.py:12"),
        (
            'Traceback (most recent call last):\n  File "/x/own.py", line 7, in loss\nZeroDivisionError: no',
            "ZeroDivisionError: no (own.py:7)",
        ),
    ],
)
def test_an_authors_error_has_its_file_and_line(
    gateway: FakeGateway, said: str, shown: str
) -> None:
    services = gateway.answers["/reef/status"][1]["services"]
    binding = {"state": "stopped", "step": 1, "last_error": said, "last_metrics": {}}
    services["trainer"] = {"failures": {}, "bindings": {"default/mine:M": binding}}
    oldest = {"report_id": "rep-1", "given_up_at": "2026-03-01T10:05:00.25+00:00"}
    services["experience"] = {"failures": {}, "parked_reports": 3, "oldest_parked_report": oldest}
    services["experience"]["untagged_sessions"] = {"support": "95% name no session"}
    output = reef("status")
    assert f"mine:M\tdefault\tstopped\t1\t0\t\t{shown}\n" in output
    assert (
        "scenario support: 95% name no session; 3 reports waiting for records, the oldest until 2026-03-01T10:05:00Z, then `reef dlq list` has it"
        in output
    )
