"""`reef records`: lists, and the story of one record up to the release that it went into."""

import json
from pathlib import Path
from typing import Any

import pytest

from reefcli import story
from tests.cli.fake_gateway import CHAIN, FakeGateway, reef, release


def test_records_are_listed_filtered_and_shown_in_full(gateway: FakeGateway) -> None:
    assert reef("records").splitlines()[1].startswith("rec-1\t")
    reef("records", "default", "--session", "ses-42")
    assert gateway.asked[-1][1] == "/reef/scenarios/default/records?session=ses-42&limit=20"
    shown = json.loads(reef("records", "show", "rec-1", "--json"))
    assert shown["record"]["event_id"] == "rec-1"
    assert (shown["steps"], shown["releases"]) == ([], [])
    assert "reef: no record gone (HTTP 404)" in reef("records", "show", "gone", code=1)
    receipt = "rec-0192f0c1a5d27cc1b1d2a4f1f0c3e5a7-9f3c"
    gateway.answers[f"/reef/records/{receipt}"] = (200, {"record": {"event_id": receipt}})
    assert reef("records", receipt) == reef("records", "show", receipt)
    assert "which record?" in reef("records", "show", code=1)
    assert "did you mean: reef records show rec-1" in reef("records", "default", "rec-1", code=1)


def sample(name: str, **other: Any) -> dict[str, Any]:
    row = {
        "sample_id": name,
        "record_ids": ["rec-1"],
        "score": 0.5,
        "untrainable": None,
        "trained_tokens": 7,
    }
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
                    "messages": [
                        {"role": "user", "content": "Hi"},
                        {"role": "user", "content": [{"type": "text", "text": "Who?"}]},
                    ]
                },
                "response": {"choices": [{"message": {"content": "I am\nReef\u001b[2J"}}]},
            },
            "session_id": "ses-1",
            "session_turn": 2,
            "retry_of": None,
            "reports": [
                {
                    "report_id": "rep-1",
                    "score": 0.5,
                    "feedback": "good",
                    "state": "joined",
                    "at": "2026-01-01T00:00:00Z",
                }
            ],
            "samples": [
                sample("smp-1"),
                sample("smp-2", untrainable="no_tokens"),
                sample("smp-3"),
                sample("smp-4"),
            ],
            "refusals": [
                {
                    "sample_id": "smp-3",
                    "recipe": "a.b:C",
                    "reason": "stale",
                    "lag": 19,
                    "kept_for_evaluation": False,
                },
                {
                    "sample_id": "smp-4",
                    "recipe": "a.b:C",
                    "reason": "held_out: kept",
                    "lag": None,
                    "kept_for_evaluation": True,
                },
            ],
        },
    )
    old = {
        "step": 1,
        "recipe": "a.b:C",
        "sample_ids": ["smp-0"],
        "candidate_id": None,
        "at": "2026-01-01T00:00:00Z",
    }
    own = {**old, "step": 4, "sample_ids": ["smp-1"], "candidate_id": "cand-4"}
    gateway.answers["/reef/scenarios/default/steps"] = (
        200,
        {"data": [own, old], "next_cursor": None},
    )
    born = release(
        "r2-bbbbbb", current=True, candidate_id="cand-4", lineage={"sample_ids": ["smp-1"]}
    )
    gateway.answers["/reef/scenarios/default/releases"] = (200, {"data": [born, *CHAIN]})
    lines = reef("records", "show", "rec-1").splitlines()
    told = {line[:13].strip(): line[13:] for line in lines}
    assert told["question"] == "Who?"
    assert told["answer"] == "I am"
    assert lines[lines.index("answer       I am") + 1] == " " * 13 + "Reef[2J", (
        "no control characters"
    )
    assert told["outcome"] == "ok, 42 ms"
    assert told["tokens"] == "3 in the question, 2 in the answer"
    assert told["release"] == "r1-aaaaaa answered"
    assert told["session"] == "ses-1, turn 2"
    assert told["report"].startswith("score 0.5, “good” (rep-1, ")
    whole = "\n".join(lines)
    assert "smp-1: trainable, 7 tokens, score 0.5" in whole
    assert "smp-2: cannot be trained on: no_tokens, the endpoint gave no token ids" in whole
    assert told["trained on"].startswith("in step 4 of a.b:C, ")
    assert told["trained on"].endswith("; candidate cand-4")
    assert told["went into"].startswith("release r2-bbbbbb, ")
    assert told["went into"].endswith(" (serves now)")
    assert told["refused"] == "by a.b:C: stale (the releases had moved on by 19)"
    assert whole.count("refused") == 1
    assert told["held out"] == "kept for evaluation, which judges candidates of a.b:C by it"
    assert told["so far"] == "no recipe has used it yet"
    as_json = json.loads(reef("records", "show", "rec-1", "--json"))
    assert as_json["steps"] == [own]
    assert as_json["releases"] == [born]
    for stale, said in (
        (False, "(waits for `reef promote`)"),
        (True, "(stale: can never be promoted)"),
    ):
        waits = {**born, "current": False, "pending": True, "stale": stale}
        gateway.answers["/reef/scenarios/default/releases"] = (200, {"data": [waits, *CHAIN]})
        assert said in reef("records", "show", "rec-1")
    gateway.answers["/reef/scenarios/default/releases"] = (200, {"data": CHAIN})
    assert "cand-4, not in the chain so far: it may be waiting for a verdict" in reef(
        "records", "show", "rec-1"
    )
    again = {**born, "candidate_id": "cand-9"}
    gateway.answers["/reef/scenarios/default/releases"] = (200, {"data": [again, *CHAIN]})
    assert "cand-4, judged again on a newer head as cand-9" in reef("records", "show", "rec-1")
    lost = {"candidate_id": "cand-4", "outcome": "conflicted", "reason": "the head has moved"}
    gateway.answers["/reef/scenarios/default/releases"] = (200, {"data": CHAIN})
    gateway.answers["/reef/scenarios/default/rejections"] = (200, {"data": [lost]})
    assert "cand-4, conflicted: the head has moved" in reef("records", "show", "rec-1")


def test_older_steps_are_looked_for_page_by_page(gateway: FakeGateway) -> None:
    record = {"record": {"event_id": "rec-1", "scenario": "default"}, "samples": [sample("smp-1")]}
    gateway.answers["/reef/records/rec-1"] = (200, record)
    gateway.answers["/reef/scenarios/default/steps"] = (200, {"data": [], "next_cursor": "job-9"})
    reef("records", "show", "rec-1", "--json")
    asked = [path for _, path, _, _ in gateway.asked if "/steps" in path]
    assert asked[:2] == [
        "/reef/scenarios/default/steps?limit=1000",
        "/reef/scenarios/default/steps?limit=1000&cursor=job-9",
    ]
    assert len(asked) == 20


def test_a_report_is_told_as_a_report(gateway: FakeGateway) -> None:
    record = {
        "type": "feedback.reported.v1",
        "event_id": "rec-7",
        "scenario": "default",
        "references": ["rec-1", "rec-2"],
        "score": -1.0,
    }
    gateway.answers["/reef/records/rec-7"] = (
        200,
        {"record": record, "reports": [], "samples": [], "refusals": []},
    )
    output = reef("records", "show", "rec-7")
    assert "about        rec-1, rec-2" in output
    assert "said         score -1\n" in output
    gone = [{"report_id": "rec-7", "state": "expired"}]
    gateway.answers["/reef/records/rec-7"][1]["reports"] = gone
    given_up = "score -1, given up, as its records did not come in time (`reef dlq list`)"
    assert f"said         {given_up}" in reef("records", "show", "rec-7")


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        ({"type": "function", "function": {"name": "f", "arguments": "{}"}}, "(calls f {})"),
        ({"type": "custom", "custom": {"name": "grep", "input": "a b"}}, "(calls grep a b)"),
        ({"type": "mcp", "server": "x"}, '(calls {"type":"mcp","server":"x"})'),
        ("nonsense", '(calls "nonsense")'),
    ],
)
def test_a_tool_call_of_any_form_is_told(call: Any, shown: str) -> None:
    message = {"content": None, "tool_calls": [call]}
    assert story.answer({"choices": [{"message": message}]}) == shown


def test_rewarded_records_are_filtered_by_score_and_exported(
    gateway: FakeGateway, tmp_path: Path
) -> None:
    rows = [
        sample("s1", score=0.9, at="2026-01-01T00:00:00Z", record_ids=["rec-9"]),
        sample("s2", score=0.25, at="2026-01-01T00:00:00Z"),
        sample("s3", score=None, at="2026-01-01T00:00:00Z", record_ids=["rec-7"]),
    ]
    gateway.answers["/reef/scenarios/default/samples"] = (200, {"data": rows})
    lines = reef("records", "--max-score", "0.5").splitlines()
    assert [line.split("\t")[0] for line in lines[1:]] == ["rec-1"]
    assert reef("records", "--min-score", "0.5").splitlines()[1].startswith("rec-9\t")
    place = tmp_path / "bad.jsonl"
    reef("records", "--max-score", "0.5", "--export", str(place))
    (line,) = place.read_text().splitlines()
    assert json.loads(line)["record"]["event_id"] == "rec-1"


def test_a_verdict_is_shown_with_both_answers_of_each_task(gateway: FakeGateway) -> None:
    task = {
        "task": "greet", "candidate": 1.0, "head": None, "candidate_answer": "Hello", "head_answer": "",
    }  # fmt: skip
    rejected = {
        "event_id": "e", "candidate_id": "cand-77", "command_id": None, "outcome": "rejected",
        "reason": "no", "at": "2026-01-01T00:00:00Z",
        "evaluation": {"verdict": "reject", "policy": "p", "reason": "p: why", "candidate_score": 1.0,
                       "head_score": 0.5, "wins": 1, "strength": "weak", "pairs": 12, "tasks": [task]},
    }  # fmt: skip
    gateway.answers["/reef/scenarios/default/rejections"] = (200, {"data": [rejected]})
    shown = reef("releases", "--evidence", "cand-7")
    assert "weak evidence, 12 pairs" in shown
    assert "rule         p: why" in shown
    assert "greet: 1 against no answer" in shown
    assert "Hello" in shown
    assert "no release and no rejected candidate cand-8" in reef(
        "releases", "--evidence", "cand-8", code=1
    )


def test_a_verdict_is_shown_with_the_verifiers_words(gateway: FakeGateway) -> None:
    told = {"candidate_words": "two circles\noverlap", "head_words": "valid"}
    solution = {"task": "solution", "candidate": 2.6359831, "head": 2.6359833, **told}
    answered = {"task": "greet", "candidate": 1.0, "head": 0.0, "candidate_answer": "Hello", **told}
    rejected = {
        "event_id": "e", "candidate_id": "cand-77", "command_id": None, "outcome": "rejected",
        "reason": "no", "at": "2026-01-01T00:00:00Z",
        "evaluation": {"verdict": "reject", "policy": "strictly_better", "reason": "why",
                       "candidate_score": 2.6359831, "head_score": 2.6359833, "losses": 1,
                       "strength": "none", "pairs": 1, "tasks": [solution, answered]},
    }  # fmt: skip
    gateway.answers["/reef/scenarios/default/rejections"] = (200, {"data": [rejected]})
    lines = reef("releases", "--evidence", "cand-7").splitlines()
    assert "1 lost; 2.6359831 against 2.6359833; no evidence, 1 pair" in lines[1]
    at = lines.index("task         solution: 2.6359831 against 2.6359833")
    assert lines[at + 1 : at + 6] == [
        "  candidate  ",
        "    words    two circles",
        "             overlap",
        "  head       ",
        "    words    valid",
    ]
    at = lines.index("task         greet: 1 against 0")
    assert lines[at + 1 : at + 3] == ["  candidate  Hello", "    words    two circles"]
