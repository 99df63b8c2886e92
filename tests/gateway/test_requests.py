"""What a client may send: model names, priorities, encodings, methods, paths, receipts."""

import gzip
import json
import zlib

import pytest

from services.gateway.domain.errors import relayed

from .conftest import CHAT, Bench, bench_of

BODY = json.dumps({"messages": CHAT, "note": "x" * 5000}).encode()
RAW_DEFLATE = zlib.compressobj(wbits=-15)


@pytest.mark.parametrize("model", ["gpt-4o", "default@r6", "Reef", "reef/other"])
async def test_a_model_that_is_not_served_is_404(bench: Bench, model: str) -> None:
    answer = await bench.chat(model=model)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert bench.engine.requests == []


async def test_an_alias_is_served_under_its_own_name() -> None:
    async with bench_of(model_aliases=("gpt-4o",)) as bench:
        assert (await bench.chat(model="gpt-4o")).json()["model"] == "gpt-4o"
        assert (await bench.chat(model="gpt-4")).status_code == 404
    async with bench_of(model_aliases=("*",)) as bench:
        assert (await bench.chat(model="anything")).json()["model"] == "anything"


@pytest.mark.parametrize("model", [None, ""])
async def test_without_a_model_the_served_name_answers(bench: Bench, model: str | None) -> None:
    for scenario in ("default", "tools"):
        answer = await bench.chat(scenario, model=model)
        assert answer.json()["model"] == "reef"
        assert answer.json()["system_fingerprint"] == f"rel-{scenario}-0"
        streamed = await bench.chat(scenario, model=model, stream=True)
        assert streamed.text.count('"model":"reef"') == streamed.text.count("data: {")
        assert f"@{scenario}" not in streamed.text


async def test_a_request_may_give_way_but_never_push_in(bench: Bench) -> None:
    for priority in (101, -5, "high", True, 1.5):
        answer = await bench.chat(priority=priority)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "priority")
    assert (await bench.chat(priority=0)).status_code == 200
    assert "priority" not in bench.engine.requests[0]
    assert (await bench.chat(priority=10)).status_code == 200
    assert bench.engine.requests[1]["priority"] == 10


@pytest.mark.parametrize(
    ("encoding", "sent"),
    [
        ("gzip", gzip.compress(BODY)),
        ("X-GZIP", gzip.compress(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("deflate", RAW_DEFLATE.compress(BODY) + RAW_DEFLATE.flush()),
        ("identity", BODY),
        ("", BODY),
    ],
)
async def test_a_compressed_body_is_read(bench: Bench, encoding: str, sent: bytes) -> None:
    answer = await bench.http.post(
        "/v1/chat/completions", content=sent, headers={"content-encoding": encoding}
    )
    assert answer.status_code == 200, answer.text
    assert bench.log.records[0].request == json.loads(BODY)
    assert bench.gateway.edge.memory.held == 0


@pytest.mark.parametrize(
    ("encoding", "sent", "status"),
    [
        ("br", b"x", 415),
        ("gzip, gzip", gzip.compress(BODY), 415),
        ("gzip", BODY, 400),
        ("gzip", gzip.compress(BODY)[:-9], 400),
        ("deflate", zlib.compress(BODY) + b"more", 400),
        ("gzip", gzip.compress(b"[" + b" " * 3_000_000 + b"]"), 413),
    ],
)
async def test_an_encoding_that_cannot_be_read_is_refused(
    encoding: str, sent: bytes, status: int
) -> None:
    async with bench_of(max_body_bytes=1024 * 1024) as bench:
        for path in ("/v1/completions", "/reef/report", "/reef/scenarios"):
            answer = await bench.http.post(
                path,
                content=sent,
                headers={"content-encoding": encoding, "content-type": "application/json"},
            )
            assert answer.status_code == status, answer.text
            assert answer.json()["error"]["message"]
        assert bench.gateway.edge.memory.held == 0


async def test_a_small_body_may_not_grow_past_the_memory_budget() -> None:
    async with bench_of(memory_budget_bytes=500_000) as bench:
        sent = gzip.compress(b'{"messages": "' + b"x" * 2_000_000 + b'"}')
        answer = await bench.http.post(
            "/v1/chat/completions", content=sent, headers={"content-encoding": "gzip"}
        )
        assert answer.status_code == 413
        assert bench.gateway.edge.memory.held == 0


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/chat/completions", "POST"),
        ("PUT", "/reef/report", "POST"),
        ("DELETE", "/reef/scenarios", "GET, POST"),
        ("POST", "/v1/models", "GET"),
        ("PATCH", "/healthz", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_told_the_right_ones(
    bench: Bench, method: str, path: str, allow: str
) -> None:
    answer = await bench.http.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allow)
    assert answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/completions", "/v1/completions"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/models/", "/v1/models"),
        ("/reef/scenarios/", "/reef/scenarios"),
        ("/v1/reef/report", "/reef/report"),
    ],
)
async def test_a_path_that_nearly_is_one_gets_a_hint(bench: Bench, path: str, meant: str) -> None:
    answer = await bench.http.post(path, json={})
    assert answer.status_code == 404
    assert f"Did you mean {meant}?" in answer.json()["error"]["message"]


async def test_the_root_says_what_this_is(bench: Bench) -> None:
    answer = await bench.http.get("/")
    assert answer.json()["openai_base_url"] == "/v1"
    unknown = await bench.http.get("/nothing/at/all")
    assert "Did you mean" not in unknown.text


@pytest.mark.parametrize(
    "reference", ["RECEIPT", "YOUR_RECEIPT", "rec-123", "chatcmpl-1", "rec-" + "0" * 32]
)
async def test_a_receipt_that_cannot_be_one_is_refused(bench: Bench, reference: str) -> None:
    answer = await bench.report(score=1, references=[reference])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "references[0]"
    assert bench.log.reports == []


async def test_a_receipt_of_the_clients_own_is_taken_once_it_is_used(bench: Bench) -> None:
    assert (await bench.report(score=1, references=["mine"])).status_code == 400
    await bench.chat(headers={"x-reef-agent-record-id": "mine"})
    bench.gateway.handlers.recent._young.clear()  # as if another gateway had answered
    assert (await bench.report(score=1, references=["mine"])).status_code == 202
    bench.reads.away = True
    assert (await bench.report(score=1, references=["not-told"])).status_code == 202


LONG = {"message": "This model's maximum context length is 8 tokens", "type": "BadRequestError"}


@pytest.mark.parametrize(
    ("status", "said", "code", "words"),
    [
        (400, {"message": "no", "type": "BadRequestError", "code": 400}, "invalid_value", "no"),
        (404, {"object": "error", "message": "no", "code": 404}, "not_found", "no"),
        (500, "<html>oops</html>", "upstream_failed", "<html>oops</html>"),
        (429, {"message": "slow", "type": "rate_limit_error", "code": "rate"}, "rate", "slow"),
        (400, {"detail": [{"loc": ["body"]}]}, "invalid_value", "loc"),
        (500, {"message": "x", "type": "Gone", "code": 503}, "overloaded", "x"),
        (400, LONG | {"code": 400}, "context_length_exceeded", "is 8 tokens"),
        (400, LONG | {"code": "invalid_value"}, "context_length_exceeded", "is 8 tokens"),
        (500, LONG, "upstream_failed", "is 8 tokens"),
    ],
)
def test_errors_of_upstreams_have_one_shape(
    status: int, said: object, code: str, words: str
) -> None:
    for form in (said, {"error": said}):
        error = relayed(status, form)
        assert set(error) >= {"message", "type", "code", "param"}
        assert error["code"] == code
        assert words in error["message"]
        assert error["type"].endswith("_error")


async def test_callers_of_one_conversation_are_told_apart(bench: Bench) -> None:
    for fields in ({}, {"user": "a"}, {"user": "b"}, {"safety_identifier": "a"}, {"user": "a"}):
        await bench.chat(**fields)
    callers = [record.caller for record in bench.log.records]
    assert callers[0] == ""
    assert len(set(callers)) == 4
    assert callers[1] == callers[4]
    shards = [shard for _, _, shard in bench.log.appended]
    assert shards[1] == shards[4]


async def test_a_conversation_stays_in_its_shard_however_it_is_spelled(bench: Bench) -> None:
    parts = [{"type": "text", "text": "Hi ", "cache_control": {"type": "ephemeral"}}]
    spelled = [
        {"role": "developer", "content": "Be brief. "},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "More"},
    ]
    await bench.chat()
    await bench.chat(messages=spelled)
    await bench.chat(messages=[*CHAT[:1], {"role": "user", "content": "Hi, you"}])
    shards = [shard for _, _, shard in bench.log.appended]
    assert shards[0] == shards[1] != shards[2]


async def test_the_document_shows_a_body_for_each_hot_path(bench: Bench) -> None:
    document = (await bench.http.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/reef/report"):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        (example,) = schemas[body["schema"]["$ref"].rpartition("/")[2]]["examples"]
        answer = await bench.http.post(path, json=example)
        assert answer.status_code in {200, 202, 501}, answer.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_half_a_pair_in_a_request_ends_no_session(bench: Bench, path: str) -> None:
    """An agent that cut an emoji in two sends the half with each later request."""
    said = [{"role": "user", "content": "\ud83d\ude00 cut \ud83d, not \\ud83d"}]
    asked = {"model": "reef", "max_tokens": 3, "messages": said, "input": said}
    answer = await bench.http.post(path, content=json.dumps(asked))
    assert answer.status_code == 200, answer.text
    text = "\U0001f600 cut \N{REPLACEMENT CHARACTER}, not \\ud83d"
    assert bench.engine.requests[-1]["messages"][-1]["content"] == text
    (record,) = bench.log.records
    assert record.request["messages"][-1]["content"] == text
    words = {"references": [record.event_id], "feedback": "bad \ud83d"}
    told = await bench.http.post("/reef/report", content=json.dumps(words))
    assert told.status_code == 202, told.text
    assert bench.log.reports[-1].feedback == "bad \N{REPLACEMENT CHARACTER}"
    for wrong in (b'{"model": "\\ud83d"', b'["\\ud83d", NaN]'):
        assert (await bench.http.post(path, content=wrong)).status_code == 400
