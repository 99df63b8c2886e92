"""Hostile requests and odd nodes behind Messages and Responses: the client's answer is the record's."""

import asyncio
import contextlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from services.gateway.domain.dialects import base
from services.gateway.domain.errors import ApiError
from services.gateway.edge.dialects import DIALECTS

from .conftest import bench_of
from .stub_engine import StubEngine, sse

BODIES = {
    "/v1/messages": {
        "model": "reef", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}],
    },
    "/v1/responses": {"model": "reef", "input": "Hi"},
}  # fmt: skip
HEAD = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "reef"}
both = pytest.mark.parametrize("path", BODIES)


@dataclass
class OddEngine(StubEngine):
    """A node that answers as it is told: a whole answer, or the deltas of a stream."""

    answer: Any = None
    deltas: list[Any] = field(default_factory=list)
    usage: Any = None
    reason: Any = "stop"

    async def chat(self, request: Request) -> Response:
        asked = await request.json()
        if self.answer is None and not self.deltas:
            return await super().chat(request)
        if self.answer is not None:
            return Response(json.dumps(self.answer), media_type="application/json")
        assert asked["stream"]
        return StreamingResponse(self.frames(), media_type="text/event-stream")

    async def frames(self):
        for delta in self.deltas:
            yield sse(HEAD | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        last = {"index": 0, "delta": {}, "finish_reason": self.reason}
        yield sse(HEAD | {"choices": [last], "usage": self.usage})
        yield b"data: [DONE]\n\n"


async def ask(path: str, engine: StubEngine | None = None, **more: Any):
    async with bench_of(stub=engine or OddEngine()) as bench:
        answer = await bench.http.post(path, json={**BODIES[path], **more})
        return answer, bench.log.records


def seen(answer: Any) -> tuple[str, list[tuple[str, str]], str]:
    """Return text, calls and the last event of an answer in a dialect, whole or as a stream."""
    if not answer.headers["content-type"].startswith("text/event-stream"):
        body = answer.json()
        items = body.get("content") or body.get("output") or []
        parts = [part for item in items for part in item.get("content", [item])]
        text = "".join(part["text"] for part in parts if "text" in part)
        return text, [call_in(item) for item in items if "name" in item], ""
    text, calls, kind = "", [], ""
    for line in answer.text.splitlines():
        if line.startswith("data: "):
            event = json.loads(line.removeprefix("data: "))
            kind, delta = event["type"], event.get("delta")
            block = event.get("content_block") or {}
            if kind == "response.output_text.delta":
                text += delta
            elif kind == "response.output_item.done" and "name" in event["item"]:
                calls.append(call_in(event["item"]))
            elif block.get("type") == "tool_use":
                calls.append((block["name"], ""))
            elif isinstance(delta, dict):
                text += delta.get("text", "")
                if "partial_json" in delta:
                    calls[-1] = (calls[-1][0], calls[-1][1] + delta["partial_json"])
    return text, [(name, arguments or "{}") for name, arguments in calls], kind


def call_in(item: dict[str, Any]) -> tuple[str, str]:
    return item["name"], item.get("arguments") or json.dumps(item["input"])


def recorded(records: Any) -> tuple[str, list[tuple[str, str]]]:
    """Return text and calls of the only record."""
    (record,) = records
    assert record.outcome == "ok"
    message = record.response["choices"][0]["message"]
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return message.get("content") or "", [(f["name"], f["arguments"]) for f in functions]


def piece(name: str | None = None, text: str = "", **fields: Any) -> dict[str, Any]:
    return {"tool_calls": [{**fields, "function": {"name": name, "arguments": text}}]}


@pytest.mark.parametrize(
    "deltas",
    [
        [piece("f", "{}", index=0, id="a"), piece("g", '{"b": 1}', index=0, id="b")],
        [piece("f", "{}", id="a"), piece("g", "{}", id="b")],
        [piece("f", '{"a":', index=0, id="a"), piece("f", " 1}", index=0, id="a")],
        [piece("g", "{}", index=1, id="b"), piece("f", '{"a": 1}', index=0, id="a")],
        [piece("f", '{"a":', index=0, id="a"), {"content": "hm"}, piece(None, " 1}", index=0)],
        [{"content": "a"}, {"content": None, "tool_calls": None}, {"content": "b"}],
        [{"content": [{"type": "text", "text": "in parts"}]}],
        [piece("f", "{}", index=0)],
    ],
    ids=["all-0", "unnumbered", "repeated", "backwards", "text-within", "nulls", "parts", "no-id"],
)
@both
async def test_the_calls_of_a_stream_are_those_of_its_record(path: str, deltas: list[Any]) -> None:
    answer, records = await ask(path, OddEngine(deltas=deltas), stream=True)
    text, calls, last = seen(answer)
    assert last in ("message_stop", "response.completed")
    assert (text, sorted(calls)) == (recorded(records)[0], sorted(recorded(records)[1]))


@both
@pytest.mark.parametrize("stream", [False, True])
async def test_halves_of_a_character_pass(path: str, stream: bool) -> None:
    """An emoji in two tokens, and one that was cut off."""
    message = {"role": "assistant", "content": "a\ud83d\ude00 b\ud83d"}
    whole = {**HEAD, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    deltas = [{"content": "a\ud83d"}, {"content": "\ude00 b\ud83d"}]
    engine = OddEngine(deltas=deltas) if stream else OddEngine(answer=whole)
    answer, records = await ask(path, engine, stream=stream)
    text = seen(answer)[0].encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert text == recorded(records)[0] == "a\N{GRINNING FACE} b\N{REPLACEMENT CHARACTER}"


@both
async def test_a_node_that_does_not_stream_is_a_whole_stream(path: str) -> None:
    whole = {**HEAD, "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}}]}
    answer, records = await ask(path, OddEngine(answer=whole), stream=True)
    assert seen(answer)[0] == recorded(records)[0] == "x"
    assert seen(answer)[2] in ("message_stop", "response.completed")


@both
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "said",
    [
        {"content": 5},
        {"tool_calls": "x"},
        {"tool_calls": ["x"]},
        {"tool_calls": [{"id": 5, "function": {"name": "f", "arguments": "{}"}}]},
        {"tool_calls": [{"id": "a", "function": "f"}]},
        {"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": {"a": 1}}}]},
        "x",
    ],
)
async def test_what_cannot_be_translated_is_not_recorded_as_answered(
    path: str, stream: bool, said: Any
) -> None:
    whole = {**HEAD, "choices": [{"index": 0, "message": said, "finish_reason": "stop"}]}
    engine = OddEngine(deltas=[{"content": "a"}, said]) if stream else OddEngine(answer=whole)
    answer, records = await ask(path, engine, stream=stream)
    (record,) = records
    assert record.outcome in ("failed", "upstream_incomplete")
    assert answer.status_code == (200 if stream else 502)
    assert seen(answer)[2] == ("error" if stream else "")


@both
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("odd", ["x", {"prompt_tokens": "x", "completion_tokens": -1}, [1]])
async def test_odd_counts_and_reasons_are_none(path: str, stream: bool, odd: Any) -> None:
    message = {"role": "assistant", "content": "a"}
    whole = {**HEAD, "choices": [{"index": 0, "message": message, "finish_reason": odd}]}
    told = OddEngine(deltas=[{"content": "a"}], usage=odd, reason=odd)
    engine = told if stream else OddEngine(answer={**whole, "usage": odd})
    answer, records = await ask(path, engine, stream=stream)
    assert answer.status_code == 200
    assert seen(answer)[0] == recorded(records)[0] == "a"


@both
async def test_arguments_nested_without_end_stay_a_text(path: str) -> None:
    deep = '{"a": ' + "[" * 400 + "]" * 400 + "}"
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": deep}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    whole = {**HEAD, "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    answer, records = await ask(path, OddEngine(answer=whole))
    assert answer.status_code == 200
    given = seen(answer)[1][0][1]
    assert deep in (given, json.loads(given)["arguments"] if path == "/v1/messages" else given)
    assert recorded(records)[1] == [("f", deep)]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/messages", {"tool_choice": {"type": []}}),
        ("/v1/responses", {"tool_choice": {"type": {}}}),
        ("/v1/responses", {"tools": [{"type": "namespace", "name": "n", "tools": [{}]}]}),
        ("/v1/responses", {"input": [
            {"type": "function_call", "name": "f", "arguments": "", "call_id": "a", "namespace": {}}
        ]}),
    ],
)  # fmt: skip
async def test_wrong_types_are_refused(path: str, fields: dict[str, Any]) -> None:
    answer, records = await ask(path, **fields)
    assert (answer.status_code, records) == (400, [])


@pytest.mark.parametrize(
    "name", ["resp_../units", "resp_a?b=c", "resp_a b\n", "resp_\u00e9", 5, {}]
)
async def test_a_name_that_is_no_receipt_is_never_part_of_a_path(name: Any) -> None:
    async with bench_of() as bench:
        body = {**BODIES["/v1/responses"], "previous_response_id": name}
        assert (await bench.http.post("/v1/responses", json=body)).status_code == 404
        assert bench.reads.asked == []


async def test_an_unknown_response_is_looked_for_seldom() -> None:
    async with bench_of() as bench:
        body = {**BODIES["/v1/responses"], "previous_response_id": "resp_rec-1"}
        answer = await bench.http.post("/v1/responses", json=body)
        assert answer.status_code == 404
        assert 1 < len(bench.reads.asked) < 10, "looked for some seconds, and seldom"


LARGE = 20_000
IMAGES = [{"type": "image", "number": number} for number in range(LARGE)]
SHOWN = [{"type": "input_image", "image_url": "x", "number": n} for n in range(LARGE)]
ORDERS = [{"role": "system", "content": "x" * 20}] * LARGE


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/messages", {"messages": [
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "a", "content": IMAGES}
            ]}
        ]}),
        ("/v1/responses", {"input": [
            {"type": "function_call_output", "call_id": "a", "output": SHOWN}
        ]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}, *ORDERS]}),
    ],
    ids=["images", "shown", "orders"],
)  # fmt: skip
def test_a_translation_takes_time_in_proportion(path: str, fields: dict[str, Any]) -> None:
    """Twenty thousand parts took two minutes, in which no other request was answered."""
    raw, began = json.dumps({**BODIES[path], **fields}).encode(), time.process_time()
    with contextlib.suppress(ApiError):  # some are refused, as soon
        DIALECTS[path].turn(raw, base.Spelling())
    assert time.process_time() - began < 5


def test_the_remembered_texts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "REMEMBERED_CHARS", 10_000)
    spelling = base.Spelling()
    for number in range(100):
        spelling.keep(f"call-{number}", '{"a":1}' + " " * 1000)
        spelling.keep("again", '{"b":2}')
    assert sum(map(len, spelling._texts.values())) <= 10_000
    assert spelling.of("call-99", {"a": 1}).startswith('{"a":1} ')
    assert spelling.of("call-0", {"a": 1}) == '{"a": 1}'
    spelling.keep("huge", " " * 20_000)
    assert not spelling._texts
    assert spelling._chars == 0


@both
async def test_a_client_that_leaves_within_a_call_leaves_an_aborted_record(path: str) -> None:
    engine = OddEngine(deltas=[piece("f", '{"a":', index=0, id="a")])
    frames, left = engine.frames, asyncio.Event()

    async def stuck():
        async for frame in frames():
            yield frame
            await left.wait()

    engine.frames = stuck  # type: ignore[method-assign]
    async with bench_of(stub=engine) as bench:
        body = {**BODIES[path], "stream": True}
        async with bench.http.stream("POST", path, json=body) as answer:
            receipt = answer.headers["x-reef-agent-record-id"]
            await anext(answer.aiter_bytes())
        record = await bench.log.record(receipt)
        left.set()
        assert record.outcome == "aborted"
        assert (record.dialect, "f" in str(record.response)) == (path[4:], True)
