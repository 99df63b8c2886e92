"""`reef records`: lists, and the story of one record up to the release that it went into."""

import json
from typing import Any

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
    assert "smp-2: cannot be trained on: no_tokens" in whole
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
    assert "candidate cand-4, which is not in the chain: rejected, or not judged yet" in reef(
        "records", "show", "rec-1"
    )


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
    assert "said         score -1" in output
