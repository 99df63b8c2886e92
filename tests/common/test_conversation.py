"""The canonical form of a message: what may change between turns, and what may not."""

from typing import Any

import pytest

from reefcommon.conversation import identity, opening

TEXT = {"type": "text", "text": "Hello"}


@pytest.mark.parametrize(
    "other",
    [
        {"role": "user", "content": [TEXT]},
        {"role": "user", "content": [TEXT | {"cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "\n Hello \t"},
        {"role": "user", "name": "ann", "content": [{"type": "input_text", "text": "Hello "}]},
        {"role": "user", "content": [{"type": "thinking", "thinking": "hm"}, TEXT]},
    ],
)
def test_one_message_in_many_spellings_is_the_same(other: dict[str, Any]) -> None:
    assert identity(other) == identity({"role": "user", "content": "Hello"})


def test_developer_is_the_newer_name_of_system() -> None:
    assert identity({"role": "developer", "content": "x"}) == identity(
        {"role": "system", "content": [{"type": "text", "text": "x"}]}
    )


def custom(name: str, given: str) -> dict[str, Any]:
    call = {"id": "c", "type": "custom", "custom": {"name": name, "input": given}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def unknown(**fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{"id": "c", "type": "patch", **fields}]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (custom("run", "ls"), custom("run", "rm")),
        (custom("run", "ls"), custom("walk", "ls")),
        (unknown(patch="a"), unknown(patch="b")),
        (unknown(), {"role": "assistant", "content": None}),
        (
            {"role": "user", "content": [{"type": "video", "url": "a"}]},
            {"role": "user", "content": [{"type": "video", "url": "b"}]},
        ),
        ({"role": "user", "content": {"odd": 1}}, {"role": "user", "content": {"odd": 2}}),
        ({"role": "user", "content": [[1]]}, {"role": "user", "content": [[2]]}),
    ],
)
def test_unknown_forms_differ_by_their_content(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert identity(one) != identity(other)
    assert identity(one) == identity(dict(one))


def test_an_id_or_a_cache_mark_on_an_unknown_form_does_not_count() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:,x"}}
    marked = image | {"cache_control": {"type": "ephemeral"}}
    assert identity({"role": "user", "content": [image]}) == identity(
        {"role": "user", "content": [marked]}
    )
    assert identity(unknown(patch="a")) == identity(unknown(patch="a") | {"id": "m"})


def test_all_turns_of_a_conversation_have_one_opening() -> None:
    first = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    later = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief. "}]},
        {"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {}}]},
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "More"},
    ]
    assert opening(first) == opening(later) == ("Be brief.", "Hi")
    assert opening([{"role": "system", "content": "alone"}]) == ("alone", "")
