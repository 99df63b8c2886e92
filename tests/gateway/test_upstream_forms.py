"""Upstreams that answer in another form than was asked, and what they state for the record."""

import json
from typing import Any

import pytest

from reefcommon.config import parse
from reefcommon.events import Sampling
from services.gateway.domain.sampling import effective, requested
from tests.security.conftest import CHAT, Answered, Edge, InstantEngines, edge_of

STATED = {
    "temperature": 0.5, "top_p": 0.9, "top_k": -1, "min_p": 0.0, "presence_penalty": 0.0,
    "frequency_penalty": 0.0, "repetition_penalty": 1.1, "min_tokens": 2, "logit_bias": True,
    "allowed_token_ids": [5, 7],
    "seed": 7, "new_in_a_later_engine": 1,
}  # fmt: skip
MESSAGE = {"role": "assistant", "content": "ok"}
UNARY = {
    "id": "c",
    "object": "chat.completion",
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2},
}
DELTA = {"index": 0, "delta": MESSAGE, "finish_reason": "stop"}
CHUNK = {"id": "c", "object": "chat.completion.chunk", "choices": [DELTA]}


def streamed(*chunks: Any) -> bytes:
    events = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    return events + b"data: [DONE]\n\n"


async def ask(
    edge: Edge, answer: bytes, *, kind: bytes = b"application/json", **fields: Any
) -> Any:
    edge.engines.answer = lambda: Answered(answer, content_type=kind)
    return await edge.http.post("/v1/chat/completions", json={**CHAT, **fields})


async def test_json_for_a_client_that_streams_is_made_a_stream() -> None:
    async with edge_of(engines=InstantEngines()) as edge:
        for options, usage in (({}, False), ({"stream_options": {"include_usage": True}}, True)):
            got = await ask(edge, json.dumps(UNARY).encode(), stream=True, **options)
            assert got.headers["content-type"].startswith("text/event-stream")
            *events, done = got.text.strip().split("\n\n")
            assert done == "data: [DONE]"
            first = json.loads(events[0][6:])
            assert first["choices"][0]["delta"] == MESSAGE
            assert ("usage" in events[-1]) is usage
        assert {json.dumps(record.response) for record in edge.log.records} == {
            json.dumps({**UNARY, "model": "reef", "system_fingerprint": "rel-default-0"})
        }


@pytest.mark.parametrize("choices", [5, "ab", {"a": 1}, [1, None, "a"]])
async def test_odd_json_for_a_client_that_streams_is_an_answer_too(choices: Any) -> None:
    """What cannot be a part of a stream is left out; the exchange is recorded."""
    message = {"role": "assistant", "content": "Hi", "tool_calls": choices}
    for odd in (choices, [{"index": 0, "message": message, "finish_reason": "stop"}]):
        async with edge_of(engines=InstantEngines()) as edge:
            got = await ask(edge, json.dumps({**UNARY, "choices": odd}).encode(), stream=True)
            assert got.text.endswith("data: [DONE]\n\n")
            assert [record.outcome for record in edge.log.records] == ["ok"]


async def test_a_stream_for_a_client_that_does_not_is_made_json() -> None:
    async with edge_of(engines=InstantEngines()) as edge:
        got = await ask(edge, streamed(CHUNK), kind=b"text/event-stream")
        assert got.headers["content-type"] == "application/json"
        assert got.json()["choices"][0]["message"] == MESSAGE
        broken = await ask(edge, streamed(CHUNK)[:-20], kind=b"text/event-stream")
        assert (broken.status_code, broken.json()["error"]["code"]) == (502, "upstream_incomplete")
        error = await ask(edge, streamed({"error": {"message": "no"}}), kind=b"text/event-stream")
        assert error.status_code == 502
        assert [record.outcome for record in edge.log.records] == [
            "ok", "upstream_incomplete", "upstream_incomplete",
        ]  # fmt: skip


async def test_half_an_emoji_in_a_unary_answer_is_relayed() -> None:
    async with edge_of(engines=InstantEngines()) as edge:
        answer = json.dumps(UNARY).encode().replace(b'"ok"', b'"cut \\ud83d"')
        got = await ask(edge, answer)
        assert b"\\ud83d" in got.content
        assert edge.log.records[0].response["choices"][0]["message"]["content"] == "cut �"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_parameters_that_the_engine_states_are_recorded(stream: bool) -> None:
    answer = {**UNARY, "sampling_params": STATED}
    chunks = streamed(CHUNK, {**CHUNK, "choices": [], "usage": None, "sampling_params": STATED})
    body = chunks if stream else json.dumps(answer).encode()
    kind = b"text/event-stream" if stream else b"application/json"
    async with edge_of(engines=InstantEngines()) as edge:
        got = await ask(edge, body, kind=kind, stream=stream, temperature=9)
        assert "sampling_params" not in got.text
        asked = await ask(edge, body, kind=kind, stream=stream, return_token_ids=True)
        assert "sampling_params" in asked.text
        for record in edge.log.records:
            assert record.sampling == Sampling(**{**STATED, "top_k": 0}, stated_by="engine")


async def test_parameters_that_are_not_stated_follow_from_the_request() -> None:
    async with edge_of(engines=InstantEngines()) as edge:
        await edge.http.post(
            "/v1/chat/completions",
            json={
                **CHAT,
                "temperature": "0.5",
                "top_p": 0.2,
                "seed": None,
                "logit_bias": {"5": 1},
                "allowed_token_ids": [9, 8],
            },
        )
        await edge.http.post("/v1/chat/completions", json=CHAT)
        first, second = edge.log.records
        assert first.sampling == Sampling(
            temperature=0.5, top_p=0.2, logit_bias=True, allowed_token_ids=(9, 8)
        )
        assert second.sampling == Sampling()
        assert second.sampling.stated_by == "request"


@pytest.mark.parametrize(
    ("fields", "constrained"),
    [
        ({"response_format": {"type": "json_object"}}, True),
        ({"response_format": {"type": "text"}}, False),
        ({"structured_outputs": {"regex": "a+"}}, True),
        ({"guided_choice": ["a", "b"], "temperature": 0.5}, True),
        ({"guided_choice": [], "bad_words": None, "use_beam_search": False}, False),
        ({"bad_words": ["no"]}, True),
        ({"tool_choice": "required"}, True),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, True),
        ({"tool_choice": "auto"}, False),
        ({"constrained": True}, False),
    ],
)
def test_an_answer_under_a_grammar_is_recorded_as_one(
    fields: dict[str, Any], constrained: bool
) -> None:
    for stated in (None, {"temperature": 0.5}):
        found = effective(stated, requested(fields), Sampling().model_dump())
        assert found is not None
        assert Sampling(**found).constrained is constrained


def test_the_nodes_defaults_fill_what_a_request_leaves_out() -> None:
    text = "reef:\n  recipe: a.b:C\nserving:\n  sampling: {temperature: 0.6, top_p: 0.95}\n"
    defaults = parse(text).serving.sampling.model_dump()
    found = effective(None, requested({"top_p": 1, "top_k": -1}), defaults)
    assert found == Sampling(temperature=0.6).model_dump()
    assert effective(None, requested({"temperature": [1]}), defaults) is None
    assert (
        effective({"temperature": 0.0}, {"temperature": 1}, defaults)
        == Sampling(temperature=0.0, stated_by="engine").model_dump()
    )
