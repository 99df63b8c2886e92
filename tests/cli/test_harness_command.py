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


STEP = {
    "step": 3, "binding": "default/x:Y", "state": "rejected", "base_release_id": "rel-8",
    "candidate_id": "cnd-1", "samples": [], "reason": "it lost",
    "proposal": {"event_id": "prp-1", "reason": "people asked"},
    "mutations": [{"op": "create", "id": "r", "options": {"kind": "rules", "config": {"text": "x"}}}],
    "dialogue": [{"model": "served", "asked": [{"content": "better?"}], "answers": ["a rule"]}],
    "evaluation": {
        "verdict": "reject", "policy": "paired_confidence", "reason": "1 loss", "strength": "none",
        "tasks": [{"task": "sieve", "candidate": 0.0, "head": 1.0, "candidate_answer": "7",
                   "candidate_words": "it is 9592",
                   "candidate_run": {"status": "ok", "seconds": 3.21, "requests": 2}}],
    },
}  # fmt: skip


def test_a_step_is_told_from_proposal_to_verdict(harness: FakeGateway) -> None:
    harness.answers["/reef/harness/steps/3"] = (200, {"data": [STEP]})
    shown = reef("harness", "show", "3")
    order = ["prp-1 people asked", "better?", "a rule", "create rules r", "text: x", "sieve: lost",
             "7 (it is 9592)", "ok, 3.2 s, 2 requests", "reject by paired_confidence", "rejected: it lost"]  # fmt: skip
    places = [shown.index(words) for words in order]
    assert places == sorted(places)
    assert json.loads(reef("harness", "show", "3", "--json")) == [STEP]
    harness.answers["/reef/harness/steps/4"] = (200, {"data": []})
    assert "no step 4" in reef("harness", "show", "4", code=1)


def test_a_release_is_shown_with_its_step(harness: FakeGateway) -> None:
    chain = harness.answers["/reef/scenarios/default/releases"][1]["data"]
    chain[1]["candidate_id"] = "cnd-1"
    harness.answers["/reef/harness/steps/cnd-1"] = (200, {"data": [STEP]})
    shown = reef("harness", "show", "rel-8")
    assert shown.index("[rules] r") < shown.index("sieve: lost")
    found = json.loads(reef("harness", "show", "rel-8", "--json"))
    assert (found["entries"], found["steps"]) == ([RULE], [STEP])


def test_propose_sends_a_rule_a_file_or_words(harness: FakeGateway, tmp_path) -> None:
    sent = {"proposal_id": "prp-1", "state": "waiting"}
    harness.answers |= {
        "/reef/harness/proposals": (202, sent),
        "/reef/train": (202, sent),
    }
    assert reef("harness", "propose", "--rule", "Be brief.").strip() == "prp-1 waiting"
    file = tmp_path / "change.yaml"
    file.write_text("- {op: remove, id: r}\n")
    reef("harness", "propose", str(file), "--reason", "old", "--key", "k")
    reef("harness", "propose", "--words", "shorter")
    bodies = [body for method, _, _, body in harness.asked if method == "POST"]
    assert bodies[0]["mutations"][0]["options"]["config"] == {"text": "Be brief."}
    assert bodies[1] == {"mutations": [{"op": "remove", "id": "r"}], "reason": "old", "key": "k"}
    assert bodies[2] == {"text": "shorter"}
    assert "name a FILE" in reef("harness", "propose", code=1)
    file.write_text("a: [")
    assert "cannot read" in reef("harness", "propose", str(file), code=1)


def test_proposals_come_with_their_states(harness: FakeGateway) -> None:
    row = {"proposal_id": "prp-1", "state": "refused", "at": "2026-01-01T00:00:00Z"}
    row |= {"kind": "mutations", "reason": "refused: no entry has this id"}
    harness.answers["/reef/harness/proposals"] = (200, {"data": [row]})
    assert "no entry has this id" in reef("harness", "proposals")


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
