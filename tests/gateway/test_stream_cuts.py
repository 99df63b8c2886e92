"""A stream is read the same however it is cut."""

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.domain.errors import UpstreamFailed
from services.gateway.domain.exchange import Asked
from services.gateway.domain.stream import Stream


def sometimes(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.just("absent"), st.none(), values)


ROW = st.fixed_dictionaries({"token": st.just("a"), "logprob": st.floats(-3, 0)})
PART = st.fixed_dictionaries(
    {
        "index": sometimes(st.sampled_from([0, 0, 0, 1, True, 0.0, "0", -1])),
        "delta": st.one_of(
            st.builds(lambda text: {"content": text}, st.text(max_size=3)),
            sometimes(
                st.sampled_from(
                    [
                        {},
                        {"content": None},
                        {"content": 1},
                        {"role": "assistant", "content": ""},
                        {"reasoning": "x"},
                        "x",
                    ]
                )
            ),
        ),
        "logprobs": sometimes(
            st.one_of(
                st.builds(lambda rows: {"content": rows}, st.lists(ROW, max_size=2)),
                st.sampled_from([{}, {"content": "x"}]),
            )
        ),
        "finish_reason": sometimes(st.sampled_from(["stop", "length"])),
        "token_ids": sometimes(
            st.one_of(st.lists(st.integers(0, 99), max_size=2), st.sampled_from([3, "x", [None]]))
        ),
        "prompt_token_ids": st.sampled_from(["absent", "absent", [1, 2], None]),
        "weight_versions": st.sampled_from(["absent", [{"version": "v", "start": 0, "end": 1}]]),
    }
)
CHUNK = st.fixed_dictionaries(
    {
        "id": st.just("c"),
        "model": sometimes(st.just("served")),
        "choices": st.one_of(
            st.lists(PART, min_size=1, max_size=1), st.lists(PART, max_size=2), st.just("x")
        ),
        "usage": sometimes(st.just({"prompt_tokens": 1, "completion_tokens": 2})),
        "error": st.sampled_from(["absent"] * 5 + [None]),
        "weight_version": sometimes(st.just("v1")),
        "prompt_token_ids": sometimes(st.just([1, 2])),
    }
)


def present(value: Any) -> Any:
    """Without what is absent."""
    if isinstance(value, dict):
        return {
            key: present(item)
            for key, item in value.items()
            if not (isinstance(item, str) and item == "absent")
        }
    return [present(item) for item in value] if isinstance(value, list) else value


ASKED = Asked("asked", logprobs=False, token_ids=False, usage=False)
FRAME = st.one_of(
    CHUNK.map(lambda chunk: b"data: " + orjson.dumps(present(chunk))),
    st.sampled_from(
        [
            b": ping",
            b"data: ",
            b"data:{}",
            b"data: 3",
            b"data:  {}",
            b"event: e\ndata: {}",
            b'data: {"a":\ndata: 1}',
            b"id: 7",
        ]
    ),
)


@given(st.lists(FRAME, max_size=6), st.booleans(), st.sampled_from([b"\n", b"\r\n"]), st.data())
def test_a_stream_is_the_same_however_it_is_cut(
    frames: list[bytes], ended: bool, newline: bytes, data: st.DataObject
) -> None:
    """Any frames in pieces of any size give what they give in pieces of seven bytes; what follows the terminator is nobody's."""
    parts = [
        frame.replace(b"\n", newline) + newline * 2
        for frame in [*frames, *([b"data: [DONE]", b"data: {}"] if ended else [])]
    ]
    whole = b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=4)))
    cut = [whole[start:end] for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    found = []
    for pieces in (cut, parts, [whole[at : at + 7] for at in range(0, len(whole), 7)]):
        stream, sent = Stream("chat.completions", ASKED), b""
        for piece in pieces:
            sent += b"" if stream.terminated else stream.feed(piece)
        found.append(
            (
                sent,
                stream.terminated,
                repr(stream.assembly.captured(estimate=True)),
                stream.assembly.answer(),
            )
        )
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize(
    "data",
    [
        b"data: {",
        b"data: [DONE",
        b"data: {}}",
        b'data: {"a":\xff}',
        b"data: {},{}",
        b"event: e\ndata: x",
    ],
)
def test_what_is_no_json_is_refused_on_both_ways(data: bytes) -> None:
    """In one piece, and in two."""
    whole = data + b"\n\n"
    for cut in (0, 7):
        stream = Stream("chat.completions", ASKED)
        assert stream.feed(whole[:cut]) == b""
        with pytest.raises(UpstreamFailed, match="not JSON"):
            stream.feed(whole[cut:])
