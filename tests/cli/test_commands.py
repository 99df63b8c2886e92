"""The commands against a gateway that answers as the real one does: releases, errors, tokens, help that teaches."""

import hashlib
import json
from pathlib import Path

import pytest
from rich.text import Text
from typer.testing import CliRunner

from reefcli.main import cli
from tests.cli.fake_gateway import CHAIN, REJECTED, FakeGateway, reef, release

COMMANDS = (
    "serve",
    "status",
    "releases",
    "rollback",
    "promote",
    "records",
    "recipes",
    "topics",
    "doctor",
)


def test_what_was_rejected_and_why(gateway: FakeGateway) -> None:
    lines = [line.split("\t") for line in reef("releases", "default", "--rejected").splitlines()]
    assert lines[0][:2] == ["candidate or command", "outcome"]
    assert (lines[1][0], lines[1][1], lines[1][3], lines[1][4]) == (
        "cand-1",
        "rejected",
        "0.250 against 0.500",
        "the head scored higher",
    )
    assert json.loads(reef("releases", "--rejected", "--json")) == REJECTED


def test_releases_in_a_pipe_are_plain_columns_and_as_json_the_gateways_own_rows(
    gateway: FakeGateway,
) -> None:
    lines = [line.split("\t") for line in reef("releases", "default", "--limit", "7").splitlines()]
    assert lines[0] == ["release", "state", "operation", "kind", "when", "evidence", "parent"]
    assert lines[1][:4] == ["rel-2", "serving", "training", "lora"]
    assert lines[1][5:] == ["0.912 against 0.500", "rel-1"]
    assert gateway.asked[-1][1] == "/reef/scenarios/default/releases?limit=7"
    assert json.loads(reef("releases", "default", "--json")) == CHAIN
    assert reef("releases") == reef("releases", "default"), "the chain, if there is one scenario"
    assert json.loads(reef("releases", "--json"))[0]["scenario"] == "default"
    heads = json.loads(reef("releases", "--json"))
    gateway.answers["/reef/scenarios"] = (200, {"data": [*heads, {**heads[0], "scenario": "two"}]})
    lines = reef("releases").splitlines()
    assert [line.split("\t")[:2] for line in lines[1:]] == [["default", "rel-2"], ["two", "rel-2"]]


def test_evidence_tells_scores_apart_and_who_won(gateway: FakeGateway) -> None:
    close = {"candidate_score": -0.0421, "head_score": -0.0424, "wins": 4, "losses": 3, "ties": 1}
    gateway.answers["/reef/scenarios/default/releases"] = (
        200,
        {"data": [release("rel-2", current=True, evaluation=close)]},
    )
    assert "\t4 won, 3 lost, 1 tied; -0.0421 against -0.0424\t" in reef("releases", "default")


def test_a_pending_release_that_can_never_be_promoted_is_stale_and_says_why(
    gateway: FakeGateway,
) -> None:
    why = "made from rel-1, but rel-2 is the head: it cannot be promoted"
    evaluation = {"candidate_score": 0.75, "head_score": 0.5, "wins": 1}
    old = release(
        "rel-3", parent="rel-1", pending=True, stale=True, stale_reason=why, evaluation=evaluation
    )
    new = release("rel-4", parent="rel-2", pending=True, stale=False, stale_reason="")
    gateway.answers["/reef/scenarios/default/releases"] = (200, {"data": [new, old, *CHAIN]})
    rows = {
        line.split("\t")[0]: line.split("\t") for line in reef("releases", "default").splitlines()
    }
    assert (rows["rel-3"][1], rows["rel-3"][5]) == ("stale", f"{why}; 1 won; 0.750 against 0.500")
    assert (rows["rel-4"][1], rows["rel-4"][5]) == ("pending", "")


@pytest.mark.parametrize("width", [60, 80, 100, 110, 160])
def test_what_is_copied_is_never_folded(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    receipt, session = (
        "rec-0192f0c1a5d27cc1b1d2a4f1f0c3e5a7-9f3c",
        "ses-5a9d4c0b7b29a10d5c50683b1952dcf6",
    )
    row = {
        "record_id": receipt,
        "at": "2026-01-01T00:00:00Z",
        "outcome": "ok",
        "session_id": session,
        "release_id": "r1-114eef",
    }
    gateway.answers["/reef/scenarios/default/records"] = (
        200,
        {"data": [{**row, "duration_ms": 19361.7}]},
    )
    chain = [
        release(
            "r12-114eef",
            parent="r11-0c3e5a",
            evaluation={"candidate_score": 0.5, "head_score": 0.25, "wins": 4},
        )
    ]
    gateway.answers["/reef/scenarios/default/releases"] = (200, {"data": chain})
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    shown = reef("records")
    assert receipt in shown
    assert "r1-114eef" in shown
    assert "19362" in shown
    assert {"r12-114eef", "r11-0c3e5a"} <= set(
        Text.from_ansi(reef("releases", "default")).plain.split()
    )
    assert "recipes.feedback_rules.recipe:FeedbackRulesRecipe" in reef("recipes")
    assert "reef.inferences.v1" in reef("topics")


@pytest.mark.parametrize(("verb", "served"), [("rollback", "rel-3"), ("promote", "rel-4")])
def test_rollback_and_promote_say_what_serves_then(
    gateway: FakeGateway, verb: str, served: str
) -> None:
    assert f"default now serves {served}" in reef(verb, "default", "rel-1", "--reason", "worse")
    assert gateway.asked[-1] == (
        "POST",
        f"/reef/scenarios/default/{verb}",
        "",
        {"release_id": "rel-1", "reason": "worse"},
    )
    assert json.loads(reef(verb, "default", "rel-1", "--json"))["release_id"] == served


def test_an_unknown_scenario_is_the_same_error_everywhere_and_errors_name_commands(
    gateway: FakeGateway,
) -> None:
    unknown = (404, {"error": {"message": "There is no scenario 'nosuch'."}})
    gateway.answers["/reef/scenarios/nosuch/records"] = (200, {"data": []})
    gateway.answers["/reef/scenarios/nosuch/releases"] = unknown
    assert reef("records", "nosuch", code=1) == reef("releases", "nosuch", code=1)
    message = "Scenario 'default' has no release 'r9'; see /reef/scenarios/default/releases."
    gateway.answers["/reef/scenarios/default/rollback"] = (404, {"error": {"message": message}})
    assert "has no release 'r9'; see `reef releases default` (HTTP 404)." in reef(
        "rollback", "default", "r9", code=1
    )
    gateway.answers["/reef/scenarios"] = (
        503,
        {"error": {"message": "Try again; /readyz and /reef/status say whether it is."}},
    )
    assert "Try again; `reef status` says whether it is (HTTP 503)." in reef("releases", code=1)


def test_a_token_goes_along_and_a_missing_one_is_asked_for(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "No bearer token (HTTP 401). Put a token into $REEF_TOKEN." in reef(
        "releases", "secret", code=1
    )
    monkeypatch.setenv("REEF_TOKEN", "t0ken")
    assert (
        "No bearer token (HTTP 401). The token in $REEF_TOKEN is not one that this Reef knows."
        in reef("releases", "secret", code=1)
    )
    refused = {
        "message": "This token is not good for scenario 'other'.",
        "code": "scenario_not_allowed",
    }
    gateway.answers["/reef/scenarios/other/releases"] = (403, {"error": refused})
    assert (
        reef("releases", "other", code=1)
        == "reef: This token is not good for scenario 'other' (HTTP 403).\n"
    )
    gateway.answers["/reef/scenarios/other/releases"] = (
        403,
        {"error": {**refused, "code": "missing_scope"}},
    )
    assert "lacks the scope" in reef("releases", "other", code=1)
    reef("releases", "default")
    assert gateway.asked[-1][2] == "Bearer t0ken"


def test_tables_on_a_terminal_say_whom_they_come_from(
    gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert gateway.url not in reef("releases")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert f"from {gateway.url}" in reef("releases")
    assert gateway.url not in reef("releases", "--json")


def test_an_answer_that_is_not_a_gateways_is_said_to_be_so(gateway: FakeGateway) -> None:
    gateway.answers["/reef/scenarios"] = (500, "boom")
    assert "(HTTP 500)" in reef("releases", code=1)


def test_help_lists_everything_and_each_command_teaches_by_example() -> None:
    overview = reef("--help")
    assert all(name in overview for name in COMMANDS)
    for name in COMMANDS:
        assert "Example" in reef(name, "--help")
    assert "No such command" in reef("frobnicate", code=2)
    assert "Did you mean 'topics'" in reef("topcs", code=2)
    assert "Missing option" in reef("serve", code=2)


@pytest.mark.parametrize(("oldest", "said"), [(7, "(7 older ones: --limit N shows more)"), (0, "")])
def test_a_list_that_was_cut_says_how_many_are_older(
    gateway: FakeGateway, oldest: int, said: str
) -> None:
    rows = [release("rel-9", sequence=oldest + 1), release("rel-8", sequence=oldest)]
    gateway.answers["/reef/scenarios/default/releases"] = (200, {"data": rows})
    result = CliRunner().invoke(cli, ["releases", "default", "--limit", "2"])
    assert result.stderr.strip() == said
    assert "older" not in result.stdout


def test_the_files_of_a_release_are_fetched_whole_or_not_at_all(
    gateway: FakeGateway, tmp_path: Path
) -> None:
    place = "/reef/scenarios/default/releases/rel-2/contents/solution"
    content = b'"best"'  # the fake gateway answers in JSON
    row = {"path": "src/best.py", "sha256": hashlib.sha256(content).hexdigest(), "size_bytes": 6}
    gateway.answers |= {place: (200, {"files": [row]}), f"{place}/src/best.py": (200, "best")}
    words = ("releases", "default", "--get", "rel-2", "--kind", "solution", "--to")
    assert reef(*words, str(tmp_path / "out")).strip() == str(tmp_path / "out/src/best.py")
    assert (tmp_path / "out/src/best.py").read_bytes() == content
    assert "not an empty directory" in reef(*words, str(tmp_path / "out"), code=1)
    gateway.answers[f"{place}/src/best.py"] = (200, "worse")
    assert "came damaged" in reef(*words, str(tmp_path / "other"), code=1)
    gateway.answers[place] = (200, {"files": [{**row, "path": "../best.py"}]})
    assert "not a path" in reef(*words, str(tmp_path / "other"), code=1)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
