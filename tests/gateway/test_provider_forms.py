"""Streams of providers that keep to OpenAI's form in their own way: the record says what the client could read."""

import json
from typing import Any

import pytest

from services.gateway.domain.answer import as_stream, encoded, recorded
from services.gateway.domain.exchange import Asked
from services.gateway.domain.stream import Stream

ASKED = Asked("m", logprobs=False, token_ids=False, usage=False, stream=True)
DONE = b"data: [DONE]\n\n"


def frame(delta: Any, **choice: Any) -> bytes:
    body = {"id": "c", "model": "x", "choices": [{"index": 0, "delta": delta, **choice}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def message_of(*deltas: Any) -> dict[str, Any]:
    """The recorded message of a stream of these deltas."""
    stream = Stream("chat.completions", ASKED)
    for delta in deltas:
        stream.feed(frame(delta))
    stream.feed(frame({}, finish_reason="stop") + DONE)
    assert stream.terminated
    answer = stream.assembly.answer()
    assert answer is not None
    text = encoded(answer)
    assert text is not None
    return json.loads(text)["choices"][0]["message"]


def test_a_choice_that_ends_twice_keeps_what_its_engine_stated():
    span = {"version": "v1", "start": 0, "end": 1}
    stream = Stream("chat.completions", ASKED)
    stream.feed(frame({"content": "Hi"}, token_ids=[1]))
    stops = {"stop_reason": "END", "matched_stop": "END"}
    ends = [{**stops, "weight_versions": [span]}, {}, {"weight_versions": None}]
    for end in ends:
        stream.feed(frame({}, finish_reason="stop", **end))
    (completion,) = stream.assembly.captured().completions
    assert completion["weight_versions"] == [span]
    answer = stream.assembly.answer()
    assert answer is not None
    assert {name: answer["choices"][0][name] for name in stops} == stops


def calls_of(*pieces: dict[str, Any]) -> list[tuple[str | None, str, str]]:
    """(id, name, arguments) of the calls that these pieces make, one a chunk."""
    calls = message_of(*({"tool_calls": [piece]} for piece in pieces))["tool_calls"]
    return [(c.get("id"), c["function"]["name"], c["function"]["arguments"]) for c in calls]


def piece(name: str | None = None, arguments: str | None = None, **fields: Any) -> dict[str, Any]:
    given = {"name": name, "arguments": arguments}
    return {**fields, "function": {key: text for key, text in given.items() if text is not None}}


TWO = [("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')]


@pytest.mark.parametrize(
    "pieces",
    [
        [piece("f", '{"x":1}', index=0, id="a"), piece("g", '{"y":2}', index=0, id="b")],
        [piece("f", '{"x":1}', id="a"), piece("g", '{"y":2}', id="b")],
        [
            piece("f", "", index=0, id="a"), piece(None, '{"x":1}', index=0),
            piece("g", "", index=0, id="b"), piece(None, '{"y":2}', index=0),
        ],
        [
            piece("f", "", id="a"), piece(None, '{"x"', id="a"), piece(None, ":1}", id="a"),
            piece("g", "", id="b"), piece(None, '{"y"'), piece(None, ":2}"),
        ],
        [
            piece("f", "", index=0, id="a"), piece("g", "", index=1, id="b"),
            piece("f", '{"x":1}', index=0, id="a"), piece("g", '{"y":2}', index=1, id="b"),
        ],
        [
            piece("f", "", id="a"), piece("g", "", id="b"),
            piece(None, '{"x":1}', id="a"), piece(None, '{"y":2}', id="b"),
        ],
        [
            piece("f", "", index=0, id="a"), piece("", '{"x":1}', index=0, id=""),
            piece("g", "", index=0, id="b"), piece("", '{"y":2}', index=0, id=""),
        ],
    ],
    ids=["one-index", "no-index", "one-index-cut", "no-index-cut", "repeated", "by-id", "empty"],
)  # fmt: skip
def test_parallel_calls_are_told_apart(pieces: list[dict[str, Any]]) -> None:
    assert calls_of(*pieces) == TWO


def test_calls_without_ids_are_told_apart_by_their_names() -> None:
    whole = [piece("f", '{"x":1}'), piece("g", '{"y":2}'), piece("g", "{}")]
    assert [call[1:] for call in calls_of(*whole)] == [
        ("f", '{"x":1}'), ("g", '{"y":2}'), ("g", "{}"),
    ]  # fmt: skip
    numbered = [piece("f", "{}", index=0), piece("g", "{}", index=0)]
    assert [call[1] for call in calls_of(*numbered)] == ["f", "g"]


def test_calls_of_one_chunk_without_an_index_are_told_apart() -> None:
    message = message_of({"tool_calls": [piece("f", "{}", id="a"), piece("f", "{}", id="b")]})
    assert [call["id"] for call in message["tool_calls"]] == ["a", "b"]


def test_a_custom_call_is_joined_too() -> None:
    pieces = [
        {"index": 0, "id": "a", "type": "custom", "custom": {"name": "run", "input": "l"}},
        {"index": 0, "custom": {"input": "s"}},
    ]
    message = message_of(*({"tool_calls": [each]} for each in pieces))
    assert message["tool_calls"] == [
        {"id": "a", "type": "custom", "custom": {"name": "run", "input": "ls"}}
    ]


def test_content_as_parts_is_recorded() -> None:
    text = {"type": "text", "text": "Hel"}
    assert (
        message_of({"content": [text]}, {"content": [text | {"text": "lo"}]})["content"] == "Hello"
    )
    assert message_of({"content": [text]}, {"content": "lo"})["content"] == "Hello"
    image = {"type": "image_url", "image_url": {"url": "data:,x"}}
    mixed = message_of({"content": "He"}, {"content": [image, image]}, {"content": "y"})
    assert mixed["content"] == [
        {"type": "text", "text": "He"}, image, image, {"type": "text", "text": "y"},
    ]  # fmt: skip


@pytest.mark.parametrize("role", ["", None, "absent", "assistant"])
def test_an_answer_is_of_the_assistant(role: str | None) -> None:
    first = {"content": "Hi"} if role == "absent" else {"role": role, "content": "Hi"}
    assert message_of(first, {"role": "", "content": "!"})["role"] == "assistant"
    unary = recorded({"choices": [{"message": first}]}) or {"choices": [{"message": first}]}
    assert unary["choices"][0]["message"]["role"] == "assistant"


@pytest.mark.parametrize("end", [b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\r\n"])
def test_a_last_event_without_its_empty_line_counts(end: bytes) -> None:
    stream = Stream("chat.completions", ASKED)
    stream.feed(frame({"content": "Hi"}) + end)
    assert not stream.terminated
    assert stream.end() == b""
    assert stream.terminated


def test_a_last_chunk_without_its_empty_line_reaches_the_client() -> None:
    stream = Stream("chat.completions", ASKED)
    stream.feed(frame({"content": "Hi"}, finish_reason="stop").strip())
    assert b'"Hi"' in stream.end()
    half = Stream("chat.completions", ASKED)
    half.feed(frame({"content": "Hi"})[:-9])
    assert half.end() == b""
    assert not half.terminated


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (("\ud83d", "\ude00"), "\U0001f600"),
        (("a\ud83d", "\ude00b\ud83c", "\udf89"), "a\U0001f600b\U0001f389"),
        (("cut \ud83d",), "cut �"),
    ],
)
def test_an_emoji_in_two_halves_is_one(pieces: tuple[str, ...], text: str) -> None:
    assert message_of(*({"content": half} for half in pieces))["content"] == text
    stream = Stream("chat.completions", ASKED)
    sent = b"".join(stream.feed(frame({"content": half})) for half in pieces)
    for half in pieces:
        assert json.dumps(half).encode()[1:-1] in sent


def test_halves_in_a_call_are_joined() -> None:
    first = piece("say", '{"x":"\ud83d', index=0, id="a")
    assert calls_of(first, piece(None, '\ude00"}', index=0)) == [("a", "say", '{"x":"\U0001f600"}')]


@pytest.mark.parametrize("reason", ["", None])
def test_an_empty_finish_reason_ends_no_choice(reason: str | None) -> None:
    stream = Stream("chat.completions", ASKED)
    stream.feed(frame({"content": "a"}, finish_reason="length"))
    stream.feed(frame({"content": "b"}, finish_reason=reason) + DONE)
    assert stream.assembly.captured().completions[0]["finish_reason"] == "length"


def test_a_unary_answer_becomes_the_stream_that_it_would_have_been() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "Hi", "tool_calls": [call, call | {"id": "b"}]}
    choices = [{"index": n, "message": message, "finish_reason": "stop"} for n in range(2)]
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    answer = {"id": "c", "object": "chat.completion", "choices": choices, "usage": usage}
    stream = Stream("chat.completions", Asked(None, False, False, usage=True, stream=True))
    events = as_stream(answer, "chat.completions", Asked(None, False, False, usage=True))
    assert stream.feed(events)
    assert stream.terminated
    assert stream.assembly.answer() == answer | {
        "choices": [{**choice, "logprobs": None} for choice in choices]
    }
    without = as_stream(answer, "chat.completions", ASKED)
    assert b"usage" not in without
