"""Reports: what is kept, and what is refused before it is kept."""

import httpx
import pytest

from .conftest import Bench

BAD_SCORES = ["true", "false", "NaN", "Infinity", "-Infinity", "1e999", '"1"', "[1]", "{}"]


async def receipt_of(bench: Bench, scenario: str = "default") -> str:
    return (await bench.chat(scenario)).headers["x-reef-agent-record-id"]


async def test_a_report_is_durable_before_it_is_accepted(bench: Bench) -> None:
    """202 with its id; the event has what was said, in the shard of the first reference."""
    receipt = await receipt_of(bench)
    answer = await bench.report(
        score=1, feedback={"why": "short"}, references=[receipt], metadata={"judge": "me"}
    )
    assert answer.status_code == 202
    assert answer.json() == {
        "agent_record_id": answer.json()["agent_record_id"],
        "scenario": "default",
        "request_type": "report",
    }
    (report,) = bench.log.reports
    assert report.event_id == answer.json()["agent_record_id"]
    assert (report.score, report.feedback, report.references, report.metadata) == (
        1.0,
        {"why": "short"},
        (receipt,),
        {"judge": "me"},
    )
    assert bench.log.appended[0][2] == bench.log.appended[1][2] == receipt[-4:]
    bench.log.broken = True
    assert (await bench.report(score=1, references=[receipt])).status_code == 503


@pytest.mark.parametrize("score", BAD_SCORES)
async def test_scores_that_are_no_numbers(bench: Bench, score: str) -> None:
    """G10: 400 that names the field, nothing stored."""
    receipt = await receipt_of(bench)
    answer = await bench.http.post(
        "/reef/report", content=f'{{"score": {score}, "references": ["{receipt}"]}}'
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "score"
    assert bench.log.reports == []


async def test_references_that_cannot_be(bench: Bench) -> None:
    """G11: empty, repeated, malformed, of another scenario, of a report: 400, nothing stored."""
    receipt, foreign = await receipt_of(bench), await receipt_of(bench, "provider")
    report_id = (
        await bench.report(score=1, references=[receipt], agent_record_id="my-report")
    ).json()["agent_record_id"]
    own = (await bench.report(score=1, references=[receipt])).json()["agent_record_id"]
    stored = len(bench.log.reports)
    wrong = [
        [],
        None,
        "text",
        [receipt, receipt],
        ["no receipt!"],
        [7],
        [None],
        [foreign],
        [receipt, foreign],
        [report_id],
        [own],
    ]
    for references in wrong:
        answer = await bench.report(score=1, references=references)
        assert answer.status_code == 400, references
        assert answer.json()["error"]["param"].startswith("references"), references
    empty = (await bench.report(score=1, references=[])).json()["error"]["message"]
    assert empty == "The field 'references' names no receipt."
    assert len(bench.log.reports) == stored


async def test_receipts_of_another_gateway_are_looked_up(bench: Bench) -> None:
    """The experience service knows older receipts; what nobody knows is accepted, since it may be early."""
    old = "rec-" + "0" * 32 + "-abcd"
    bench.reads.rows[f"/records/{old}"] = {
        "record": {"event_id": old, "type": "inference.recorded.v1", "scenario": "elsewhere"}
    }
    assert (await bench.report(score=1, references=[old])).status_code == 400
    assert (
        await bench.report(score=1, references=["rec-" + "1" * 32 + "-abcd"])
    ).status_code == 202
    bench.reads.away = True
    assert (
        await bench.report(score=1, references=["rec-" + "2" * 32 + "-abcd"])
    ).status_code == 202


async def test_the_same_report_again(bench: Bench) -> None:
    """Same id and content: 202 with the same id; other content: 409. An id that an exchange has: 409."""
    receipt = await receipt_of(bench)
    body = {"references": [receipt], "agent_record_id": "r-1"}
    first, again = await bench.report(score=1, **body), await bench.report(score=1, **body)
    assert first.status_code == again.status_code == 202
    assert first.json() == again.json()
    assert {(report.event_id, report.content_digest) for report in bench.log.reports} == {
        ("r-1", bench.log.reports[0].content_digest)
    }
    assert (await bench.report(score=2, **body)).status_code == 409
    await bench.chat(headers={"x-reef-agent-record-id": "exchange-1"})
    assert (
        await bench.report(score=1, references=[receipt], agent_record_id="exchange-1")
    ).status_code == 409


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"feedback": 3, "references": ["a"]}, "feedback"),
        ({"score": 1, "references": ["a"], "metadata": []}, "metadata"),
        ({"score": 1, "references": ["a"], "agent_record_id": "no good"}, "agent_record_id"),
        (
            {"score": 1, "references": ["a"], "agent_record_id": "rec-" + "0" * 32 + "-abcd"},
            "agent_record_id",
        ),
        ({"score": 1, "references": ["a"], "agent_record_id": "mine\n"}, "agent_record_id"),
        ({"score": 1, "references": ["a\n"]}, "references[0]"),
        ({"references": ["a"]}, "score"),
        ({"score": 1, "references": ["a"], "scor": 2}, "scor"),
    ],
)
async def test_other_fields_are_checked(bench: Bench, body: dict, param: str) -> None:
    """400 that names the field."""
    answer = await bench.report(**body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert bench.log.reports == []


async def test_a_report_on_a_client_chosen_receipt(bench: Bench) -> None:
    """It goes to the shard of its exchange, which the idempotency entry knows."""
    await bench.chat(headers={"x-reef-agent-record-id": "mine-1"})
    assert (await bench.report(score=0.5, references=["mine-1"])).status_code == 202
    assert bench.log.appended[0][2] == bench.log.appended[1][2]


@pytest.mark.parametrize("levels", [130, 250, 900])
@pytest.mark.parametrize("field", ["feedback", "metadata"])
async def test_a_report_that_nobody_could_read(bench: Bench, field: str, levels: int) -> None:
    """Nested deeper than readers of the event go: refused at once, not dead-lettered after its 202."""
    deep = f'{{"a": {"[" * levels}{"]" * levels}}}'
    answer = await bench.http.post(
        "/reef/report", content=f'{{"score": 1, "references": ["a"], "{field}": {deep}}}'
    )
    assert answer.status_code == 400
    assert bench.log.reports == []


async def test_a_report_too_large_for_its_event(bench: Bench) -> None:
    """413, not a 503 that asks for another try."""
    answer = await bench.report(score=1, feedback="x" * 1_000_000, references=["a"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert bench.log.reports == []


async def test_a_report_may_name_its_scenario_in_its_body(bench: Bench) -> None:
    receipt = (await bench.chat()).headers["x-reef-agent-record-id"]
    body = {"score": 1.0, "references": [receipt]}
    assert (await bench.report(**body, scenario_in_body="default")).status_code == 400, (
        "not a field"
    )
    async with httpx.AsyncClient(base_url=bench.url) as client:
        told = await client.post("/reef/report", json={**body, "scenario": "nowhere"})
        assert (told.status_code, told.json()["error"]["code"]) == (404, "scenario_not_found")
        told = await client.post("/reef/report", json={**body, "scenario": "Not A Name"})
        assert (told.status_code, told.json()["error"]["code"]) == (400, "invalid_scenario")
        told = await client.post(
            "/reef/report",
            json={**body, "scenario": "other"},
            headers={"x-reef-scenario": "default"},
        )
        assert (told.status_code, told.json()["error"]["param"]) == (400, "scenario")
        assert (
            await client.post("/reef/report", json={**body, "scenario": "default"})
        ).status_code == 202
    assert [report.scenario for report in bench.log.reports] == ["default"]


@pytest.mark.parametrize(("word", "last"), [("true", True), ("0", False), ("done", None)])
async def test_a_client_says_which_exchange_is_the_last_of_its_session(
    bench: Bench, word: str, last: bool | None
) -> None:
    told = await bench.chat(headers={"x-reef-session-end": word})
    assert told.status_code == (400 if last is None else 200)
    await bench.chat()
    ends = [record.session_end for record in bench.log.records]
    assert ends == ([] if last is None else [last]) + [False]


@pytest.mark.parametrize(("word", "kept"), [("no", 0), ("OFF", 0), ("yes", 1), ("nope", None)])
async def test_what_somebody_may_not_want_to_be_kept_is_not_guessed(
    bench: Bench, word: str, kept: int | None
) -> None:
    told = await bench.chat(headers={"x-reef-capture": word})
    assert told.status_code == (400 if kept is None else 200)
    assert len(bench.log.records) == (kept or 0)
