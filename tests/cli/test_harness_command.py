"""`reef harness`: entries, their changes, and the command that installs them."""

import json

import pytest

from tests.cli.fake_gateway import FakeGateway, reef, release

RULE = {"id": "r", "kind": "rules", "config": {"text": "Be brief.\nAlways."}, "disabled": False}
SKILL = {
    "id": "s",
    "kind": "skill",
    "config": {"name": "sieve", "description": "count primes", "text": "Use a sieve."},
    "disabled": True,
}


@pytest.fixture
def harness(gateway: FakeGateway) -> FakeGateway:
    row = {"release_id": "rel-9", "operation": "harness", "created_at": "2026-01-01T00:00:00Z"}
    chain = [
        release("rel-9", current=True, contents={"harness": "h-9"}),
        release("rel-8", contents={"harness": "h-8"}),
        release("rel-1", contents={}),
    ]
    place = "/reef/scenarios/default/releases/rel-8/contents/harness/harness.json"
    gateway.answers |= {
        "/reef/harness": (200, {"entries": [RULE, SKILL]}),
        "/reef/harness/releases": (200, {"data": [{**row, "reason": "four said so"}]}),
        "/reef/harness/adapters": (200, {"data": [{"name": "pi"}]}),
        "/reef/scenarios/default/releases": (200, {"data": chain}),
        place: (200, {"format": 1, "entries": [RULE]}),
    }
    return gateway


def test_show_prints_each_field_and_says_what_is_off(harness: FakeGateway) -> None:
    assert reef("harness", "show").splitlines() == [
        "[rules] r", "  text: Be brief.", "    Always.",
        "[skill] s (disabled)", "  name: sieve", "  description: count primes",
        "  text: Use a sieve.",
    ]  # fmt: skip
    assert json.loads(reef("harness", "show", "--json")) == [RULE, SKILL]
    assert reef("harness", "show", "rel-1").strip() == "the harness is empty"


def test_diff_names_the_lines_that_came_and_went(harness: FakeGateway) -> None:
    found = reef("harness", "diff", "rel-8").splitlines()
    assert found[:2] == ["--- rel-8", "+++ head"]
    added = [line for line in found[2:] if line.startswith("+")]
    assert added[0] == "+[skill] s (disabled)"
    assert not [line for line in found[2:] if line.startswith("-")]
    assert reef("harness", "diff", "rel-1", "rel-1").strip() == "no difference"


@pytest.mark.parametrize(("name", "says"), [("rel", "3 releases"), ("x", "no release")])
def test_a_release_that_is_not_one_is_refused(harness: FakeGateway, name: str, says: str) -> None:
    assert says in reef("harness", "show", name, code=1)


def test_releases_come_with_their_reasons(harness: FakeGateway) -> None:
    assert "four said so" in reef("harness", "releases")
    assert json.loads(reef("harness", "releases", "--json"))[0]["release_id"] == "rel-9"


def test_install_prints_the_command(harness: FakeGateway) -> None:
    text = reef("harness", "install", "pi", "--scenario", "packing").strip()
    place = f"{harness.url}/reef/harness/install?adapter=pi&scenario=packing"
    assert text == f"curl -fsS -H \"Authorization: Bearer $REEF_TOKEN\" '{place}' | bash"
    assert "there are: pi" in reef("harness", "install", "vi", code=1)


RUN = {
    "status": "ok", "exit_code": 0, "seconds": 2.5, "requests": 3, "files": ["label.txt"],
    "digest": "d", "lines": ["user: label it", "calls write(path=label.txt)"],
}  # fmt: skip


def test_episodes_stand_side_by_side(harness: FakeGateway) -> None:
    task = {
        "task": "3 to Oslo", "candidate": 1.0, "head": None, "candidate_answer": "Done.",
        "head_answer": "", "candidate_words": "there", "head_words": "", "candidate_run": RUN,
        "head_run": None,
    }  # fmt: skip
    found = {"verdict": "select", "policy": "always", "reason": "x", "tasks": [task]}
    rows = [release("rel-9"), release("rel-8", evaluation=found), release("rel-7")]
    harness.answers["/reef/scenarios/default/releases"] = (200, {"data": rows})
    harness.answers["/reef/scenarios/default/rejections"] = (200, {"data": []})
    text = reef("harness", "episodes")
    assert "rel-8" in text
    (first,) = [line for line in text.splitlines() if "3 to Oslo" in line]
    assert first.split() == ["3", "to", "Oslo", "1", "there", "no", "run"]
    for part in ("ok, 2.5 s, 3 requests, files: label.txt", "calls write(path=label.txt)"):
        assert part in text
    assert json.loads(reef("harness", "episodes", "rel-8", "--json")) == [task]
    assert "no runs of an agent of rel-9" in reef("harness", "episodes", "rel-9", code=1)
