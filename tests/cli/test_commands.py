"""The commands against a gateway that answers as the real one does: releases, errors, tokens, help that teaches."""

import json

import pytest

from tests.cli.fake_gateway import CHAIN, REJECTED, FakeGateway, reef

COMMANDS = ("serve", "status", "releases", "rollback", "promote", "records", "recipes", "topics", "doctor")


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


def test_tables_on_a_terminal_say_whom_they_come_from(gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert "Missing option" in reef("serve", code=2)
