"""When two messages are the same, and what a request and its answer look like as hashes."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reefcommon.conversation import identity
from services.experience.domain.conversation import answers, fingerprint, request_messages, sampling
from tests.experience.factory import assistant, inference, user

CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'},
}
OTHER_ID = {
    "id": "call_9",
    "type": "function",
    "function": {"name": "add", "arguments": '{"b":2,"a":1}'},
}


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (user("a"), {"role": "user", "content": [{"type": "text", "text": "a"}]}),
        (user("a"), {"role": "user", "content": "a", "name": "bob"}),
        (assistant(""), {"role": "assistant", "content": None}),
        (assistant("a "), assistant("a", reasoning_content="because")),
        (assistant("", tool_calls=[CALL]), {"role": "assistant", "tool_calls": [OTHER_ID]}),
        (
            assistant("x", tool_calls=[CALL]),
            {"role": "assistant", "content": [{"type": "text", "text": "x"}, {"type": "tool_use", "id": "t", "name": "add", "input": {"a": 1, "b": 2}}]},
        ),
        (assistant("", tool_calls=[{"function": {"name": "f", "arguments": ""}}]), assistant("", tool_calls=[{"function": {"name": "f", "arguments": "{}"}}])),
    ],
)  # fmt: skip
def test_same(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert identity(left) == identity(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (user("a"), assistant("a")),
        (user("a"), user("b")),
        (assistant("", tool_calls=[CALL]), assistant("")),
        (assistant("", tool_calls=[CALL]), assistant("", tool_calls=[CALL, CALL])),
        (
            user("a"),
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "image_url", "image_url": {"url": "data:1"}},
                ],
            },
        ),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:2"}}]},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:1"}}]},
        ),
    ],
)
def test_not_same(left: dict[str, Any], right: dict[str, Any]) -> None:
    assert identity(left) != identity(right)


def chat(
    messages: list[Any], answer: Any = None
) -> tuple[dict[str, Any], dict[str, Any] | None, str]:
    return (
        {"messages": messages},
        None if answer is None else {"choices": [{"message": answer}]},
        "chat.completions",
    )


def test_a_request_goes_on_from_the_request_and_answer_before_it() -> None:
    first = fingerprint(*chat([user("a")], assistant("b")))
    second = fingerprint(*chat([user("a"), assistant("b"), user("c")]))
    assert first.prefixes == ()
    assert second.prefixes == first.tails
    assert fingerprint(*chat([user("a"), assistant("b")])).prefixes == (), (
        "a prefill does not strictly extend"
    )
    assert fingerprint(*chat([user("a"), assistant("B"), user("c")])).prefixes != first.tails


def test_each_api_is_read() -> None:
    assert request_messages({"prompt": "p"}, "completions") == (user("p"),)
    assert answers({"choices": [{"text": "t"}]}, "completions") == (assistant("t"),)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "role",
                    "content",
                    "messages",
                    "tool_calls",
                    "function",
                    "arguments",
                    "input",
                    "type",
                    "text",
                    "choices",
                    "message",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(body=st.dictionaries(st.sampled_from(["messages", "prompt", "input", "system", "choices", "content", "output", "temperature"]), JSON), api=st.sampled_from(["chat.completions", "completions"]))  # fmt: skip
def test_any_body_is_read_without_an_error(body: dict[str, Any], api: str) -> None:
    fingerprint(body, body, api)
    sampling(inference(request=body))


def test_a_number_of_any_size_in_the_arguments_is_read() -> None:
    huge = {
        "role": "assistant",
        "content": [{"type": "tool_use", "name": "f", "input": {"n": 2**70}}],
    }
    other = {
        "role": "assistant",
        "content": [{"type": "tool_use", "name": "f", "input": {"n": 2**70 + 1}}],
    }
    assert identity(huge) != identity(other)


@pytest.mark.parametrize("arguments", ['{"a": "\\ud83d"}', '{"a": ', "[" * 100_000, "\x00"])
def test_arguments_that_were_cut_are_read(arguments: str) -> None:
    assert fingerprint(
        *chat(
            [user("a")],
            assistant("", tool_calls=[{"function": {"name": "f", "arguments": arguments}}]),
        )
    ).tails


@pytest.mark.parametrize(
    ("value", "expected"), [(0.7, 0.7), (0, 0.0), (None, 1.0), (True, 1.0), ("1", 1.0)]
)
def test_temperature(value: object, expected: float) -> None:
    request = {"messages": [], "temperature": value}
    assert sampling(inference(request=request)).temperature == expected


@pytest.mark.parametrize("kind", [[], {}, None, 7, True, ["tool_use"]])
def test_a_part_with_a_type_that_is_no_text_is_read(kind: object) -> None:
    part = {"type": kind, "text": "hello"}
    assert identity({"role": "user", "content": [part]})[1] == "hello"
    assert identity({"role": "user", "content": [{"type": kind}]})[1]
