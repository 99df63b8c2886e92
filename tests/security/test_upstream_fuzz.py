"""Answers that no model would give: the client gets the engine's bytes or a clean error, the record says why nobody may train on it."""

import asyncio
import copy
import gc
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reefcommon.events import InferenceRecorded
from services.experience.domain.samples import untrainable
from services.gateway import metrics

from .conftest import CHAT, Answered, Edge, InstantEngines, edge_of

WORDS = ["Hel", "lo", "!"]
UNARY: dict[str, Any] = {
    "id": "c-1",
    "object": "chat.completion",
    "created": 1,
    "model": "reef",
    "weight_version": "v1",
    "prompt_token_ids": [1, 2],
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "Hello!",
                "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}],
            },
            "finish_reason": "stop",
            "token_ids": [10, 11, 12],
            "logprobs": {
                "content": [
                    {"token": word, "logprob": -0.5, "bytes": None, "top_logprobs": []}
                    for word in WORDS
                ]
            },
            "weight_versions": [{"version": "v1", "start": 0, "end": 3}],
        }
    ],
    "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
}


def chunk(position: int) -> dict[str, Any]:
    call = {"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return {
        "id": "c-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "reef",
        "prompt_token_ids": [1, 2],
        "choices": [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": WORDS[position], "tool_calls": [call]},
                "token_ids": [10 + position],
                "logprobs": {"content": [{"token": WORDS[position], "logprob": -0.5}]},
                "finish_reason": "stop" if position == 2 else None,
                "weight_versions": [{"version": "v1", "start": 0, "end": 3}],
            }
        ],
    }


CHUNKS = [
    chunk(0),
    chunk(1),
    chunk(2),
    {"id": "c-1", "choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}},
]
NESTED: Any = 0
for _ in range(140):
    NESTED = [NESTED]
DEEPER: Any = 0
for _ in range(400):
    DEEPER = {"function": DEEPER}
NASTY = [
    None, True, False, 0, -1, 1.5, 2**31, 2**63, 2**64 - 1, 1e300, "", "x", "\x00", "\u2028", "NaN", "é" * 300, [], {}, [None], [[]], [True], [-1],
    [1.5], ["10"], [2**40], [10, 11, 12], {"content": None}, {"content": [1]}, {"content": [{"logprob": "x"}]}, {"content": [{"logprob": True}]},
    {"token_logprobs": [None]}, {"token_logprobs": "x"}, {"index": []}, {"index": 0}, [{"index": 0}, {"index": "a"}, {}, 5], {"version": 1},
    [{"version": "v", "start": -1, "end": 2**70}], NESTED, DEEPER,
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a document that something else can stand in."""
    if path:
        yield path
    for key in (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    ):
        yield from places(value[key], (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: Any, *, gone: bool) -> Any:
    made = copy.deepcopy(document)
    inner = made
    for key in path[:-1]:
        inner = inner[key]
    if gone:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return made


def dumped(document: Any) -> bytes:
    """As an engine might: also what orjson would not write."""
    import json

    return json.dumps(document).encode()


def mutations(document: Any) -> st.SearchStrategy[Any]:
    """The document with one to three places changed."""
    one = st.tuples(
        st.sampled_from(sorted(places(document), key=str)),
        st.sampled_from(range(len(NASTY))),
        st.booleans(),
    )

    def apply(changes: list[tuple[tuple[Any, ...], int, bool]]) -> Any:
        made = document
        for path, value, gone in changes:
            try:
                made = changed(made, path, NASTY[value], gone=gone)
            except (KeyError, IndexError, TypeError):
                continue  # an earlier change took the place away
        return made

    return st.lists(one, min_size=1, max_size=3).map(apply)


class World:
    """One gateway for all examples, on a loop of its own."""

    def __init__(self, runner: asyncio.Runner, edge: Edge) -> None:
        self.runner, self.edge = runner, edge

    def ask(self, pieces: list[bytes], *, stream: bool) -> tuple[httpx.Response, InferenceRecorded]:
        """What a client gets of an answer in these pieces, and the one record that is left of it."""
        self.edge.engines.answer = lambda: Pieces(pieces, stream=stream)
        self.edge.log.appended.clear()
        answer = self.runner.run(
            self.edge.http.post("/v1/chat/completions", json={**CHAT, "stream": stream})
        )
        (record,) = self.edge.log.records
        assert self.edge.gateway.edge.memory.held == 0
        assert metrics.IN_FLIGHT._value.get() == 0
        return answer, record


class Pieces(Answered):
    """EngineAnswer in pieces."""

    def __init__(self, pieces: list[bytes], *, stream: bool) -> None:
        super().__init__(
            b"".join(pieces), content_type=b"text/event-stream" if stream else b"application/json"
        )
        self._pieces = pieces

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with asyncio.Runner() as runner:
        made = edge_of(engines=InstantEngines())
        edge = runner.run(made.__aenter__())
        yield World(runner, edge)
        runner.run(made.__aexit__(None, None, None))
    gc.collect()


def reason(record: InferenceRecorded) -> str | None:
    """Why the experience service would not train on it."""
    return untrainable(record)


def check(answer: httpx.Response, record: InferenceRecorded, sampled: list[Any]) -> None:
    """What holds whatever came: a status of ours, a record that says how it ended, and never tokens other than the engine's."""
    assert answer.status_code in {200, 502}
    assert answer.headers["x-reef-agent-record-id"]
    assert record.outcome in {"ok", "failed", "upstream_incomplete"}
    if answer.status_code == 502:
        assert answer.json()["error"]["code"].startswith("upstream_")
        assert record.outcome == "failed"
        assert record.error
    if reason(record) is None:
        (choice,) = record.completions
        assert list(choice.token_ids) == sampled
        assert len(choice.logprobs) == len(choice.token_ids)


EXAMPLES = int(os.environ.get("REEF_FUZZ_EXAMPLES", "120"))
BOUNDED = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=EXAMPLES < 1000,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)


def ids_of(*parts: Any) -> list[Any]:
    """The token ids of choice 0 in order, as whoever reads the engine's words finds them."""
    found: list[Any] = []
    for part in parts:
        choices = part.get("choices") if isinstance(part, dict) else None
        for choice in choices if isinstance(choices, list) else ():
            ids = choice.get("token_ids") if isinstance(choice, dict) else None
            found += ids if isinstance(ids, list) else []
    return found


@BOUNDED
@given(body=mutations(UNARY))
def test_unary_answers_with_wrong_types(world: World, body: Any) -> None:
    """Whatever stands where: no crash, no record that readers cannot read, no tokens of wrong number."""
    answer, record = world.ask([dumped(body)], stream=False)
    check(answer, record, ids_of(body))
    if answer.status_code == 200:
        orjson.loads(answer.content)


@BOUNDED
@given(data=st.data())
def test_streams_with_wrong_types(world: World, data: st.DataObject) -> None:
    """The same for streams, cut anywhere; what has begun ends with [DONE] or with an error event, never with both."""
    at = data.draw(st.integers(0, len(CHUNKS) - 1))
    bodies = [*CHUNKS[:at], data.draw(mutations(CHUNKS[at])), *CHUNKS[at + 1 :]]
    lines = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    sent = (
        b"".join(b"data: " + dumped(body) + lines * 2 for body in bodies)
        + b"data: [DONE]"
        + lines * 2
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=6)))
    pieces = [sent[a:b] for a, b in zip([0, *cuts], [*cuts, len(sent)], strict=True)]
    answer, record = world.ask(pieces, stream=True)
    check(answer, record, ids_of(*bodies))
    if record.outcome == "upstream_incomplete":
        assert "[DONE]" not in answer.text
        assert '"code":"upstream_' in answer.text.strip().splitlines()[-1]
    else:
        assert answer.text.endswith("data: [DONE]\n\n")
    if record.outcome == "ok":
        assert answer.headers["x-reef-agent-record-id"] == record.event_id


@BOUNDED
@given(data=st.data())
def test_streams_of_broken_bytes(world: World, data: st.DataObject) -> None:
    """Bytes are lost, doubled, changed or put in: an answer that was hurt is never trained on with other tokens than those sampled."""
    sent = bytearray(
        b"".join(b"data: " + dumped(body) + b"\n\n" for body in CHUNKS) + b"data: [DONE]\n\n"
    )
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(sent) - 1))
        length = data.draw(st.integers(0, 12))
        put = data.draw(
            st.sampled_from(
                [
                    b"",
                    b"\xff\xfe",
                    b"\x00",
                    b"\r",
                    b"\n\n",
                    b"\r\n\r\n",
                    b"data: ",
                    b": x\n\n",
                    b"[DONE]",
                    b'"',
                    b"}",
                    b"{" * 300,
                ]
            )
        )
        sent[at : at + length] = put
    answer, record = world.ask([bytes(sent)], stream=True)
    check(answer, record, [10, 11, 12]) if not digits_hurt(sent) else check_lengths(record)


def digits_hurt(sent: bytes) -> bool:
    """Whether the hurt made other numbers, which nobody could tell from right ones."""
    return (
        any(b'"token_ids": [%d]' % (10 + n) not in sent for n in range(3))
        or sent.count(b"token_ids") != 6
        or sent.count(b"index") != 6
    )


def check_lengths(record: InferenceRecorded) -> None:
    if reason(record) is None:
        assert len(record.completions[0].token_ids) == len(record.completions[0].logprobs)


@pytest.mark.parametrize(
    ("bodies", "why"),
    [
        ([CHUNKS[0], CHUNKS[2], CHUNKS[3]], "length_mismatch"),
        ([CHUNKS[0], CHUNKS[1], CHUNKS[1], CHUNKS[2], CHUNKS[3]], "length_mismatch"),
        (
            [
                CHUNKS[0],
                changed(CHUNKS[1], ("choices", 0, "token_ids"), "11", gone=False),
                CHUNKS[2],
                CHUNKS[3],
            ],
            "no_tokens",
        ),
        (
            [
                CHUNKS[0],
                changed(CHUNKS[1], ("choices", 0, "token_ids"), [2**40], gone=False),
                CHUNKS[2],
                CHUNKS[3],
            ],
            "no_tokens",
        ),
        (
            [
                CHUNKS[0],
                changed(CHUNKS[1], ("choices", 0, "logprobs"), None, gone=False),
                CHUNKS[2],
                CHUNKS[3],
            ],
            "length_mismatch",
        ),
        (
            [
                CHUNKS[0],
                changed(CHUNKS[1], ("choices", 0, "index"), -1, gone=False),
                CHUNKS[2],
                CHUNKS[3],
            ],
            "length_mismatch",
        ),
        (
            [
                CHUNKS[0],
                changed(CHUNKS[1], ("choices", 0, "index"), 1, gone=False),
                CHUNKS[2],
                CHUNKS[3],
            ],
            "several_choices",
        ),
        (
            [CHUNKS[0], changed(CHUNKS[1], ("choices",), None, gone=False), CHUNKS[2], CHUNKS[3]],
            "length_mismatch",
        ),
        ([changed(CHUNKS[0], ("prompt_token_ids",), [1.0], gone=False), *CHUNKS[1:]], "no_tokens"),
        (CHUNKS, None),
    ],
)
def test_why_a_hurt_answer_is_not_trained_on(
    world: World, bodies: list[Any], why: str | None
) -> None:
    """A frame that was lost or came twice shows in the engine's own count; wrong types leave nothing. Each has its named reason."""
    sent = [b"data: " + dumped(body) + b"\n\n" for body in bodies]
    _, record = world.ask([*sent, b"data: [DONE]\n\n"], stream=True)
    assert (record.outcome, reason(record)) == ("ok", why)


def test_frames_without_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is collected beyond its bound: one frame, one answer, one list of parts, nesting."""
    from services.gateway.domain import sse

    monkeypatch.setattr(sse, "MAX_FRAME_BYTES", 4096)
    many = changed(
        CHUNKS[1],
        ("choices", 0, "delta", "tool_calls"),
        [{"index": n} for n in range(5000)],
        gone=False,
    )
    deep = changed(CHUNKS[1], ("choices", 0, "delta", "deep"), DEEPER, gone=False)
    first = b"data: " + dumped(CHUNKS[0]) + b"\n\n"
    cases = {
        "frame": [b"data: " + b"x" * 1000 for _ in range(10)],
        "parts": [b"data: " + dumped(many) + b"\n\n"],
        "depth": [b"data: " + dumped(deep) + b"\n\n"] * 3,
    }
    for name, pieces in cases.items():
        answer, record = world.ask([first, *pieces, b"data: [DONE]\n\n"], stream=True)
        assert record.outcome == "upstream_incomplete", name
        assert '"code":"upstream_invalid"' in answer.text.strip().splitlines()[-1], name
        assert "[DONE]" not in answer.text
    inference = world.edge.gateway.edge.inference
    monkeypatch.setattr(inference, "max_answer_bytes", 20_000)
    answer, record = world.ask([first] * 1000, stream=True)
    assert (record.outcome, "upstream_too_large" in answer.text) == ("upstream_incomplete", True)
    assert len(answer.content) < 60_000
