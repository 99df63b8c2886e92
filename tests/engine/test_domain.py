"""The pure rules: sampling ranges, stops, spans, batching, tool calls, text pieces."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.decoders import Metaspace
from tokenizers.models import WordLevel

from services.engine.domain.batching import admissible_count, closing_moves, joint_prompt_count
from services.engine.domain.detokenize import Detokenizer
from services.engine.domain.errors import InvalidRequestError
from services.engine.domain.messages import MAX_ENTRIES, count_characters, template_messages
from services.engine.domain.outputs import TokenLogprob
from services.engine.domain.sampling import SamplingParams, token_budget
from services.engine.domain.sequence import SequenceState, TextRules
from services.engine.domain.spans import VersionSpan, extend_spans
from services.engine.domain.stops import StopScanner
from services.engine.domain.tool_calls import ToolCallParser
from services.engine.domain.work import Work


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("top_p", 0.0),
        ("top_p", 1.01),
        ("top_k", -2),
        ("n", 0),
        ("logprobs", 51),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", 1e-39),
        ("presence_penalty", 2.5),
        ("min_tokens", 9),
        ("stop", ("",)),
        ("stop", ("x" * 257,)),
    ],
)
def test_a_value_out_of_range_is_named(field, value):
    with pytest.raises(InvalidRequestError) as caught:
        SamplingParams(max_tokens=8, **{field: value})
    assert caught.value.param == field


def test_the_budget_is_what_was_asked_for_or_the_rest_of_the_context():
    assert token_budget(10, None, 16) == 6
    assert token_budget(10, 6, 16) == 6
    with pytest.raises(InvalidRequestError, match="maximum context length is 16"):
        token_budget(10, 7, 16)
    with pytest.raises(InvalidRequestError, match="maximum context length"):
        token_budget(16, None, 16)


def test_spans_stay_adjacent():
    spans = ()
    for version in "aaabbbb":
        spans = extend_spans(spans, version)
    assert spans == (VersionSpan("a", 0, 3), VersionSpan("b", 3, 7))


@given(st.lists(st.integers(0, 9), max_size=8, unique=True), st.integers(0, 10))
def test_rows_close_up(leaving, size):
    leaving = [row for row in leaving if row < size]
    rows = list(range(size))
    for source, target in closing_moves(size, leaving):
        rows[target] = rows[source]
    assert sorted(rows[: size - len(leaving)]) == [row for row in range(size) if row not in leaving]


def test_a_large_request_is_not_overtaken():
    assert admissible_count([(1, 9), (4, 9), (1, 9)], (0, 0), 3) == 1
    assert admissible_count([(1, 9), (1, 9), (1, 9)], (0, 0), 3) == 3
    assert admissible_count([(1, 9)], (3, 9), 3) == 0
    assert admissible_count([(4, 9)], (0, 0), 3) == 0


def test_long_requests_share_the_memory_of_all_rows():
    long = [(1, 8192)] * 32
    assert admissible_count(long, (0, 0), 32) == 8
    assert admissible_count([(1, 100)] * 32, (0, 0), 32) == 32
    assert admissible_count(long, (6, 100), 32) == 2
    assert admissible_count([(1, 100)], (8, 8192), 32) == 0
    assert admissible_count([(32, 8192)], (0, 0), 32) == 1, "alone, it would wait for ever"
    assert admissible_count([(32, 8192)], (1, 100), 32) == 0


def test_prompts_are_read_together_while_their_padded_size_fits():
    assert joint_prompt_count([3, 4, 2, 9], 12) == 3
    assert joint_prompt_count([3, 5, 2], 12) == 2
    assert joint_prompt_count([13, 1], 12) == 0


@given(st.text("ab<|", max_size=40), st.lists(st.integers(1, 5), min_size=40, max_size=40))
def test_a_stop_string_is_found_however_the_text_is_cut(text, sizes):
    stops = ("ab<", "|b")
    scanner, shown, hit, at = StopScanner(stops), "", None, 0
    for size in sizes:
        piece, at = text[at : at + size], at + size
        out, hit = scanner.push(piece)
        shown += out
        if hit:
            break
    if not hit:
        shown += scanner.flush()
    firsts = [text.index(stop) for stop in stops if stop in text]
    assert shown == (text[: min(firsts)] if firsts else text)


@given(st.binary(max_size=60))
def test_pieces_join_to_the_whole_text(data):
    def decode(ids):
        return bytes(ids).decode("utf-8", errors="replace")

    detokenizer = Detokenizer(decode)
    assert "".join(detokenizer.push(byte) for byte in data) + detokenizer.flush() == decode(data)


# Beginnings, middles and wrong bytes of characters of two to four bytes, alone and in one token.
SCRAPS = [
    b"a",
    b"\x80",
    b"\xff",
    b"\xc3",
    b"\xe2",
    b"\x82",
    b"\xf0",
    b"\x9f",
    b"\x98",
    b"\x80\xff",
    b"\x9f\x98",
]


@given(st.lists(st.sampled_from(SCRAPS), max_size=80))
def test_scraps_of_characters_are_shown_in_time_and_join_to_the_whole(scraps):
    lengths = []

    def decode(ids):
        lengths.append(len(ids))
        return b"".join(ids).decode("utf-8", errors="replace")

    detokenizer = Detokenizer(decode)
    assert "".join(map(detokenizer.push, scraps)) + detokenizer.flush() == decode(scraps)
    assert max(lengths[:-1], default=0) <= 64


def test_a_character_that_never_ends_is_shown_while_it_comes():
    detokenizer = Detokenizer(lambda ids: bytes(ids).decode("utf-8", errors="replace"))
    shown = [detokenizer.push(0x80) for _ in range(200)]
    assert sum(map(len, shown)) > 180


@given(st.lists(st.integers(0, 5), max_size=12))
def test_spaces_between_tokens_stay_with_a_decoder_that_drops_the_first(ids):
    """SentencePiece's decoders do so; id 5 is a special token, without a text."""
    tokenizer = Tokenizer(
        WordLevel({t: i for i, t in enumerate(["?", "▁a", "▁bc", "d", "▁", "<s>"])}, unk_token="?")
    )
    tokenizer.decoder, _ = Metaspace(), tokenizer.add_special_tokens(["<s>"])
    detokenizer = Detokenizer(tokenizer.decode)
    pieces = [detokenizer.push(token_id) for token_id in ids]
    assert "".join(pieces) + detokenizer.flush() == tokenizer.decode(ids)


CALLS = [
    *(
        (f"<tool_call>{body}</tool_call>", f"<tool_call>{body}</tool_call>", [])
        for body in (
            '{"name": "f", "arguments": {"a": "\\ud83d"}}',
            '{"name": "\\udc00", "arguments": {}}',
            '{"name": "f", "arguments": {"a": NaN}}',
            '{"name": "f", "arguments": {"a": [-Infinity]}}',
        )
    ),
    (
        '<tool_call>{"name": "f", "arguments": {"a": "\\ud83d\\ude00", "n": 1234567890123456789012}}</tool_call>',
        "",
        [("f", '{"a": "\U0001f600", "n": 1234567890123456789012}')],
    ),
    ("plain text", "plain text", []),
    ('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', "", [("f", '{"a": 1}')]),
    (
        'Let me see.\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n<tool_call>{"name": "g"}</tool_call>\n',
        "Let me see.",
        [("f", "{}"), ("g", "{}")],
    ),
    ('<tool_call>{"name": "f", "arguments": {}}</tool_call>\n done', "done", [("f", "{}")]),
    ('<tool_call>{"name": "f", "arguments": {"x": "é"}}', "", [("f", '{"x": "é"}')]),
    ("<tool_call>{not json}</tool_call>", "<tool_call>{not json}</tool_call>", []),
    ('<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
    ("a < b and <tool", "a < b and <tool", []),
]


@pytest.mark.parametrize(("text", "content", "calls"), CALLS)
@pytest.mark.parametrize("seed", range(4))
def test_tool_calls_do_not_depend_on_the_pieces(text, content, calls, seed):
    draw, parser, out, found, at = random.Random(seed), ToolCallParser(), "", [], 0
    while at < len(text):
        size = draw.randint(1, 6) if seed else len(text)
        more, new = parser.push(text[at : at + size])
        out, found, at = out + more, found + new, at + size
    more, new = parser.flush()
    found += new
    assert (out + more, [(call.name, call.arguments) for call in found]) == (content, calls)
    assert [call.index for call in found] == list(range(len(calls)))


def state(**fields):
    params = SamplingParams(**({"max_tokens": 10} | fields))
    work = Work("r", (1, 2), params, None, seed=1, first_stream=0, sink=lambda _: None)
    return SequenceState(work, 0, TextRules(frozenset([0]), 100, lambda ids: bytes(ids).decode()))


def feed(sequence, text):
    deltas = []
    for byte in text:
        deltas.append(sequence.accept(TokenLogprob(byte, -1.0), "v"))
        if deltas[-1].finish_reason:
            break
    return deltas


def test_eos_is_a_token_but_no_text():
    deltas = feed(state(), b"ab\x00c")
    assert [delta.text for delta in deltas] == ["a", "b", ""]
    assert deltas[-1].finish_reason == "stop"
    assert deltas[-1].stop_reason is None
    assert [t.token_id for delta in deltas for t in delta.tokens] == [97, 98, 0]


def test_a_stop_token_is_reported_and_not_shown():
    deltas = feed(state(stop_token_ids=frozenset([ord("b")])), b"abc")
    assert deltas[-1].stop_reason == ord("b")
    assert "".join(delta.text for delta in deltas) == "a"


def test_min_tokens_outlasts_eos_and_stops():
    sequence = state(min_tokens=4, stop=("b",))
    assert sequence.banned == {0}
    deltas = feed(sequence, b"abcdb")
    assert "".join(delta.text for delta in deltas) == "abcd"
    assert deltas[-1].stop_reason == "b"


def test_length_shows_what_was_held_back():
    deltas = feed(state(max_tokens=3, stop=("cde",)), b"abcd")
    assert "".join(delta.text for delta in deltas) == "abc"
    assert deltas[-1].finish_reason == "length"


def test_messages_become_what_templates_take():
    messages = template_messages(
        [
            {
                "role": "developer",
                "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
            },
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": '{"x": 1}'}}],
            },
            {"role": "tool", "tool_call_id": "1", "content": "r"},
        ]
    )
    assert messages[0] == {"role": "system", "content": "ab"}
    assert messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"x": 1}}
    assert messages[2]["tool_call_id"] == "1"


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": ""}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]},
    ],
)
def test_the_parts_of_all_messages_are_limited_in_number(message):
    assert len(template_messages([message] * MAX_ENTRIES)) == MAX_ENTRIES
    with pytest.raises(InvalidRequestError, match="at most 10000 parts and tool calls, got 10001"):
        template_messages([message] * (MAX_ENTRIES + 1))


@given(st.recursive(st.text("ab"), lambda s: st.lists(s) | st.dictionaries(st.text("k"), s)))
def test_counting_characters_stops_beyond_the_limit(value):
    whole = count_characters(value, 10**9)
    assert [count_characters(value, most) > most for most in (whole - 1, whole)] == [True, False]


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "robot", "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user", "content": [{"type": "image_url"}]}, "messages[0].content[0]"),
        ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": 5}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [None]}, "messages[0].tool_calls[0]"),
        ({"role": ["user"], "content": "x"}, "messages[0].role"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": [{"type": ["text"], "text": "x"}]}, "messages[0].content[0]"),
        ({"role": "user", "content": [{"type": "text", "text": 1}]}, "messages[0].content[0]"),
    ],
)
def test_a_bad_message_is_named(message, param):
    with pytest.raises(InvalidRequestError) as caught:
        template_messages([message])
    assert caught.value.param == param
