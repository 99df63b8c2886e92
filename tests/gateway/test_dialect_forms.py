"""Answers and requests in the forms that providers and agents really send, through both formats."""

import json
from typing import Any

import anthropic
import pytest

from services.gateway.domain.dialects import base
from services.gateway.domain.dialects.base import Dialect, Json, Spelling, Translator, Turn
from services.gateway.domain.dialects.message_events import MessageEvents
from services.gateway.domain.dialects.messages import Messages
from services.gateway.domain.dialects.response_events import ResponseEvents
from services.gateway.domain.dialects.responses import Responses
from services.gateway.domain.errors import ApiError

from .conftest import bench_of
from .test_dialect_faults import OddEngine

USER = {"role": "user", "content": "Hi"}


def piece(**fields: Any) -> Json:
    return {"choices": [{"index": 0, "finish_reason": None, "delta": fields}]}


def end(reason: str | None, **fields: Any) -> Json:
    return {"choices": [{"index": 0, "finish_reason": reason, "delta": {}}], **fields}


def call(index: int | None = 0, name: str = "", text: Any = "", call_id: str = "") -> Json:
    function = {"name": name, "arguments": text}
    made = {"function": {key: value for key, value in function.items() if value}}
    return made | ({} if index is None else {"index": index}) | ({"id": call_id} if call_id else {})


def streamed(make: type[Translator], chunks: list[Json], **asked: Any) -> list[Json]:
    turn = Turn(asked, {}, True, "reef", Spelling(), receipt="R")
    translator = make(turn)
    found = translator.begin()
    for chunk in json.loads(json.dumps(chunks)):
        found += translator.chunk(chunk)
    return found + translator.end()


def blocks(events: list[Json]) -> list[Json]:
    """Return the content of a message, read as the vendor's client reads it."""
    found: list[Json] = []
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(found), "blocks come after each other"
                found.append({**event["content_block"], "said": "", "open": True})
            case "content_block_delta":
                block = found[event["index"]]
                assert block["open"]
                delta = event["delta"]
                if delta["type"] == "signature_delta":
                    block["signature"] += delta["signature"]
                    continue
                key = {"text_delta": "text", "thinking_delta": "thinking"}.get(delta["type"])
                assert block["type"] == (key or "tool_use")
                block["said"] += delta[key or "partial_json"]
            case "content_block_stop":
                found[event["index"]]["open"] = False
    assert not any(block["open"] for block in found)
    return found


def items(events: list[Json]) -> list[Json]:
    """Return the output of a response; its events tell the same as its end."""
    output: list[Json] = events[-1]["response"]["output"]
    texts: dict[int, str] = {}
    for event in events:
        if event["type"].endswith(".delta"):
            at = event["output_index"]
            texts[at] = texts.get(at, "") + event["delta"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == output
    for at, item in enumerate(output):
        parts = [part["text"] for part in item.get("content") or ()]
        whole = item["arguments"] if item["type"] == "function_call" else "".join(parts)
        assert texts.get(at, whole if whole in ("", "{}") else "") == whole
    return output


ONE, TWO = ("a", "look_up", '{"q": 1}'), ("b", "now", '{"q": 2}')
CALLS = {
    "numbered alike": [
        piece(tool_calls=[call(0, "look_up", '{"q": 1}', "a")]),
        piece(tool_calls=[call(0, "now", '{"q": 2}', "b")]),
    ],
    "not numbered": [
        piece(tool_calls=[call(None, "look_up", '{"q": 1}', "a")]),
        piece(tool_calls=[call(None, "now", '{"q": 2}', "b")]),
    ],
    "named in each piece": [
        piece(tool_calls=[call(0, "look_up", '{"q"', "a")]),
        piece(tool_calls=[call(0, "look_up", ": 1}", "a"), call(1, "now", '{"q": 2}', "b")]),
    ],
    "named late": [
        piece(tool_calls=[call(0, call_id="a"), call(1, call_id="b")]),
        piece(tool_calls=[call(0, "look_up", '{"q": 1}'), call(1, "now", '{"q": 2}')]),
    ],
    "mixed, and a text in between": [
        piece(tool_calls=[call(0, "look_up", '{"q"', "a")]),
        piece(content="\n"),
        piece(tool_calls=[call(1, "now", '{"q"', "b")]),
        piece(tool_calls=[call(0, text=": 1}"), call(1, text=": 2}")]),
    ],
}


@pytest.mark.parametrize("reason", ["tool_calls", "stop", None])
@pytest.mark.parametrize("chunks", CALLS.values(), ids=CALLS)
def test_calls_of_a_stream_are_told_apart_and_end_the_turn(
    chunks: list[Json], reason: str | None
) -> None:
    events = streamed(MessageEvents, [*chunks, end(reason)])
    uses = [block for block in blocks(events) if block["type"] == "tool_use"]
    assert [(use["id"], use["name"], use["said"]) for use in uses] == [ONE, TWO]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    found = items(streamed(ResponseEvents, [*chunks, end(reason)]))
    made = [item for item in found if item["type"] == "function_call"]
    assert [(item["call_id"], item["name"], item["arguments"]) for item in made] == [ONE, TWO]


def test_a_call_without_an_id_gets_one_and_without_a_name_is_none() -> None:
    chunks = [piece(tool_calls=[call(0, "look_up", "{}"), call(1, text="{}")]), end("tool_calls")]
    (use,) = blocks(streamed(MessageEvents, chunks))
    (item,) = items(streamed(ResponseEvents, chunks))
    assert use["id"] == item["call_id"] == "call_R_0"
    alone = [piece(content="Hm."), piece(tool_calls=[call(0, text="{}")]), end("tool_calls")]
    events = streamed(MessageEvents, alone)
    assert [block["said"] for block in blocks(events)] == ["Hm."]
    assert events[-2]["delta"]["stop_reason"] == "end_turn", "there is nothing to call"
    assert [item["type"] for item in items(streamed(ResponseEvents, alone))] == ["message"]


def test_a_long_call_is_written_as_it_comes() -> None:
    turn = Turn({}, {}, True, "reef", Spelling(), receipt="R")
    translator = ResponseEvents(turn)
    for name, text in (("write", '{"text": "'), ("", "a" * 99)):
        found = translator.chunk(piece(tool_calls=[call(0, name, text, "a")]))
        assert found[-1]["delta"] == text, "a client that hears nothing gives up"


def test_a_text_after_a_call_is_a_block_of_its_own() -> None:
    chunks = [
        piece(content="See."),
        piece(tool_calls=[call(0, "now", "{", "a")]),
        piece(content="Then."),
        piece(tool_calls=[call(0, text="}")]),
        end("tool_calls"),
    ]
    found = blocks(streamed(MessageEvents, chunks))
    assert [(block["type"], block["said"]) for block in found] == [
        ("text", "See."), ("tool_use", "{}"), ("text", "Then."),
    ]  # fmt: skip
    assert [i["type"] for i in items(streamed(ResponseEvents, chunks))] == [
        "message", "function_call",
    ]  # fmt: skip


THOUGHT = (
    [piece(reasoning_content="hm"), piece(reasoning_content="", content="Yes.")],
    [piece(reasoning="hm", reasoning_content="hm"), piece(content="Yes.")],
    [
        piece(content=[{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]),
        piece(content=[{"type": "text", "text": "Yes."}]),
    ],
)


@pytest.mark.parametrize("chunks", THOUGHT)
@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_are_shown_to_a_client_that_asks_for_them(
    chunks: list[Json], stream: bool
) -> None:
    def told(**asked: Any) -> list[tuple[str, str]]:
        if stream:
            found = blocks(streamed(MessageEvents, [*chunks, end("stop")], **asked))
            return [(block["type"], block["said"]) for block in found]
        content = whole(Messages(), chunks, **asked)["content"]
        return [(block["type"], block.get("thinking") or block.get("text")) for block in content]

    assert told(thinking={"type": "adaptive"}) == [("thinking", "hm"), ("text", "Yes.")]
    assert told() == [("text", "Yes.")]
    made = (
        items(streamed(ResponseEvents, [*chunks, end("stop")]))
        if stream
        else whole(Responses(), chunks)["output"]
    )
    assert [(item["type"], item["content"][0]["text"]) for item in made] == [
        ("reasoning", "hm"), ("message", "Yes."),
    ]  # fmt: skip


def whole(dialect: Dialect, chunks: list[Json], reason: str = "stop", **asked: Any) -> Json:
    """Return the unary answer with the fields of the chunks."""
    message: Json = {"role": "assistant", "content": None}
    for chunk in chunks:
        for key, value in chunk["choices"][0]["delta"].items():
            message[key] = (message.get(key) or type(value)()) + value
    chat = {"choices": [{"message": message, "finish_reason": reason}]}
    return dialect.answer(Turn(asked, {}, False, "reef", Spelling(), receipt="R"), chat)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("reason", "stop", "status", "why"),
    [
        ("length", "max_tokens", "incomplete", "max_output_tokens"),
        ("abort", "max_tokens", "incomplete", "max_output_tokens"),
        ("content_filter", "refusal", "incomplete", "content_filter"),
        ("stop", "end_turn", "completed", None),
        ("tool_calls", "end_turn", "completed", None),
        ("function_call", "end_turn", "completed", None),
    ],
)
def test_reasons_of_an_end(
    reason: str, stop: str, status: str, why: str | None, stream: bool
) -> None:
    chunks = [piece(content="Ye")]
    if stream:
        message = streamed(MessageEvents, [*chunks, end(reason)])[-2]["delta"]
        response = streamed(ResponseEvents, [*chunks, end(reason)])[-1]["response"]
    else:
        message, response = whole(Messages(), chunks, reason), whole(Responses(), chunks, reason)
    assert message["stop_reason"] == stop
    assert response["status"] == status
    assert (response["incomplete_details"] or {}).get("reason") == why


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("field", ["stop_reason", "matched_stop"])  # vLLM's, SGLang's
@pytest.mark.parametrize("value", ["END", 2, None])
def test_the_sequence_that_ended_an_answer_is_told(field: str, value: Any, stream: bool) -> None:
    last = end("stop")
    last["choices"][0][field] = value
    if stream:
        told = streamed(MessageEvents, [piece(content="a"), last])[-2]["delta"]
    else:
        choice = {"message": {"content": "a"}, "finish_reason": "stop", field: value}
        told = Messages().answer(Turn({}, {}, False, "reef", Spelling()), {"choices": [choice]})
    assert told["stop_sequence"] == (value if value == "END" else None)
    assert told["stop_reason"] == ("stop_sequence" if value == "END" else "end_turn")


def test_a_call_that_was_cut_is_not_complete() -> None:
    cut = [piece(tool_calls=[call(0, "write", '{"text": "a', "a")]), end("length")]
    (item,) = items(streamed(ResponseEvents, cut))
    assert item["status"] == "incomplete"
    assert streamed(MessageEvents, cut)[-2]["delta"]["stop_reason"] == "max_tokens"


@pytest.mark.parametrize(
    ("arguments", "cut"),
    [('{"path": "a", "text": "The fi', True), ('{"path": "a",', True), ("{", True),
     ("", False), ("{}", False), ('{"path" "a"', False), ("ls -l", False)],
)  # fmt: skip
@pytest.mark.parametrize("reason", ["tool_calls", "stop"])
def test_a_call_that_ends_in_the_middle_was_cut(arguments: str, cut: bool, reason: str) -> None:
    """vLLM says `tool_calls` of a call that the limit of tokens cut off: a client would run it."""
    chunks = [piece(tool_calls=[call(0, "write", arguments, "a")])]
    told = (
        streamed(MessageEvents, [*chunks, end(reason)])[-2]["delta"],
        whole(Messages(), chunks, reason),
    )
    assert {each["stop_reason"] for each in told} == {"max_tokens" if cut else "tool_use"}
    last = streamed(ResponseEvents, [*chunks, end(reason)])[-1]["response"]
    assert last["status"] == ("incomplete" if cut else "completed")
    assert whole(Responses(), chunks, reason)["status"] == last["status"]


def test_tokens_of_a_cache_and_of_thoughts_are_counted_as_the_vendors_do() -> None:
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 90},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    last = {"choices": [], "usage": usage}
    counted = streamed(MessageEvents, [piece(content="a"), end("stop"), last])[-2]["usage"]
    assert (counted["input_tokens"], counted["cache_read_input_tokens"]) == (10, 90)
    response = streamed(ResponseEvents, [piece(content="a"), end("stop"), last])[-1]["response"]
    assert response["usage"]["input_tokens"] == 100
    assert response["usage"]["input_tokens_details"]["cached_tokens"] == 90
    assert response["usage"]["output_tokens_details"]["reasoning_tokens"] == 4


def test_a_failure_is_told_in_both_ways_of_responses() -> None:
    translator = ResponseEvents(Turn({}, {}, True, "reef", Spelling(), receipt="R"))
    failed, told = translator.failure({"message": "too busy", "status": 429})
    assert failed["type"] == "response.failed"
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"] == {"code": "rate_limit_exceeded", "message": "too busy"}
    assert (told["type"], told["message"]) == ("error", "too busy")


def test_the_spelling_of_a_call_is_remembered_with_its_arguments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Some models number the calls of each turn from 0.
    spelling = Spelling()
    texts = ('{"path":  "."}', '{"path":"/"}', '{"b":1.0,"a":[1,  {}]}')
    for text in texts:
        spelling.keep("list_dir:0", text)
    for text in texts:
        assert spelling.of("list_dir:0", json.loads(text)) == text
    assert spelling.of("list_dir:0", {"a": [1, {}], "b": 1}) == texts[2], "JavaScript's 1.0 is 1"
    assert spelling.of("list_dir:0", {"a": [True, {}], "b": 2}) == '{"a": [true, {}], "b": 2}'
    monkeypatch.setattr(base, "REMEMBERED_CHARS", 300)
    spelling.keep("x", '{"y":  1}')
    assert spelling.of("x", {"y": 1}) == '{"y":  1}'
    assert spelling.of("list_dir:0", json.loads(texts[0])) == '{"path": "."}', "and is forgotten"


def chat_of(dialect: Dialect, **body: Any) -> Json:
    asked = {"model": "reef", "max_tokens": 9, "messages": [USER], "input": "Hi", **body}
    return dialect.turn(json.dumps(asked).encode(), Spelling()).chat


def test_the_beginning_of_an_answer_is_gone_on_with() -> None:
    asked = chat_of(Messages(), messages=[USER, {"role": "assistant", "content": "{"}])
    assert asked["messages"][-1] == {"role": "assistant", "content": "{"}
    assert (asked["continue_final_message"], asked["add_generation_prompt"]) == (True, False)
    use = {"type": "tool_use", "id": "a", "name": "x", "input": {}}
    for last in ([{"type": "text", "text": ""}], [{"type": "text", "text": "So"}, use]):
        asked = chat_of(Messages(), messages=[USER, {"role": "assistant", "content": last}])
        assert "continue_final_message" not in asked
    assert "continue_final_message" not in chat_of(Messages())


def test_results_of_tools_stay_results() -> None:
    use = {"type": "tool_use", "id": "a", "name": "x", "input": {}}
    for given, text in (
        ({"is_error": True}, "Error"),
        ({"is_error": True, "content": "no"}, "Error: no"),
        ({"content": []}, ""),
        ({"content": [{"type": "tool_reference", "tool_name": "Web"}]}, "The tool Web is loaded."),
    ):
        result = {"type": "tool_result", "tool_use_id": "a", **given}
        turns = [USER, {"role": "assistant", "content": [use]}]
        chat = chat_of(Messages(), messages=[*turns, {"role": "user", "content": [result]}])
        assert chat["messages"][2:] == [{"role": "tool", "tool_call_id": "a", "content": text}]
    chat = chat_of(Messages(), messages=[{"role": "user", "content": []}])
    assert chat["messages"] == [{"role": "user", "content": ""}]


def test_a_schema_of_messages_reaches_the_model() -> None:
    form = {"type": "json_schema", "schema": {"type": "object"}}
    for asked in ({"output_config": {"format": form}}, {"output_format": form}):
        sent = chat_of(Messages(), **asked)["response_format"]
        assert sent["json_schema"]["schema"] == form["schema"]
    assert "response_format" not in chat_of(Messages(), output_config={"effort": "low"})
    with pytest.raises(ApiError, match="json_schema"):
        chat_of(Messages(), output_config={"format": {"type": "xml"}})


def test_tools_of_the_vendors_servers_are_left_out_beside_others() -> None:
    own = {"name": "x", "input_schema": {"type": "object"}}
    search = {"type": "web_search_20250305", "name": "web_search"}
    (tool,) = chat_of(Messages(), tools=[search, own])["tools"]
    assert tool["function"]["name"] == "x"
    (tool,) = chat_of(Responses(), tools=[{"type": "web_search"}, {"type": "function", **own}])[
        "tools"
    ]
    assert tool["function"]["name"] == "x"
    with pytest.raises(ApiError, match="name"):
        chat_of(Responses(), tools=[{"type": "function", "function": {"name": "x"}}])


def test_nothing_is_said_of_calls_without_tools() -> None:
    # An agent that asks for a summary of its session takes the tools away, and no more.
    asked: Json = {"tools": [], "tool_choice": "auto", "parallel_tool_calls": False}
    silent = chat_of(Responses(), **asked)
    assert not {"tools", "tool_choice", "parallel_tool_calls"} & silent.keys()
    for kind in ("auto", "none"):
        choice = {"type": kind, "disable_parallel_tool_use": True}
        silent = chat_of(Messages(), tools=[], tool_choice=choice)
        assert not {"tools", "tool_choice", "parallel_tool_calls"} & silent.keys()
    assert chat_of(Responses(), tools=[], tool_choice="required")["tool_choice"] == "required"
    function = {"type": "function", "name": "x", "parameters": {"type": "object"}}
    chat = chat_of(Responses(), **{**asked, "tools": [function]})
    assert (chat["tool_choice"], chat["parallel_tool_calls"]) == ("auto", False)


CALL = {"type": "function_call", "call_id": "a", "name": "x", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "a", "output": "done"}
SAID = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "t"}]}
REFUSED = {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}


@pytest.mark.parametrize(
    ("given", "roles"),
    [
        ([CALL, SAID, OUTPUT, USER], ["assistant", "tool", "user"]),
        ([SAID, CALL, USER, OUTPUT], ["assistant", "tool", "user"]),
        ([CALL, {**CALL, "call_id": "b"}, OUTPUT, USER, {**OUTPUT, "call_id": "b"}],
         ["assistant", "tool", "tool", "user"]),
        ([CALL, USER, CALL, OUTPUT], ["assistant", "user", "assistant", "tool"]),
        ([REFUSED, USER], ["assistant", "user"]),
    ],
)  # fmt: skip
def test_results_follow_their_calls_at_once(given: list[Json], roles: list[str]) -> None:
    found = chat_of(Responses(), input=[USER, *given])["messages"][1:]
    assert [message["role"] for message in found] == roles
    if SAID in given:
        assert found[0]["content"] == "t"
    if REFUSED in given:
        assert found[0]["content"] == "no"


def used(*names: str, text: str = "") -> Json:
    blocks = [{"type": "tool_use", "id": name, "name": "x", "input": {}} for name in names]
    said = [{"type": "text", "text": text}] if text else []
    return {"role": "assistant", "content": [*said, *blocks]}


def result(name: str, text: str = "") -> Json:
    """The result of a call; an agent may remind the model of something beside it."""
    blocks = [{"type": "tool_result", "tool_use_id": name, "content": name}]
    said = [{"type": "text", "text": text}] if text else []
    return {"role": "user", "content": [*blocks, *said]}


@pytest.mark.parametrize(
    ("given", "roles"),
    [
        ([used("a", "b", "c"), result("a", "note"), result("c"), result("b", "go on")],
         ["assistant", "tool a", "tool c", "tool b", "user note", "user go on"]),
        ([used("a", "b"), result("a"), {"role": "system", "content": "note"}, result("b")],
         ["assistant", "tool a", "tool b", "user note"]),
        ([used("a", "b"), result("a", "stopped"), used("c"), result("c")],
         ["assistant", "tool a", "user stopped", "assistant", "tool c"]),
    ],
)  # fmt: skip
def test_results_of_one_turn_may_come_in_several_messages(
    given: list[Json], roles: list[str]
) -> None:
    found = chat_of(Messages(), messages=[USER, *given])["messages"][1:]
    told = [
        message["role"]
        if message["role"] == "assistant"
        else f"{message['role']} {message['content']}"
        for message in found
    ]
    assert told == roles


def test_an_answer_in_several_messages_is_one_answer() -> None:
    """The vendor joins them, and a chat's results must follow the message of their calls."""
    thoughts = {"type": "thinking", "thinking": "Hm", "signature": ""}
    parts = [{"role": "assistant", "content": [thoughts]}, used(text="Both"), used("a"), used("b")]
    given = [
        USER,
        *parts,
        result("b"),
        result("a"),
        {"role": "assistant", "content": "Do"},
        used(text="ne"),
    ]
    _, answer, first, second, begun = chat_of(Messages(), messages=given)["messages"]
    assert (answer["reasoning"], answer["content"]) == ("Hm", "Both")
    assert [each["id"] for each in answer["tool_calls"]] == ["a", "b"]
    assert (first["content"], second["content"], begun["content"]) == ("b", "a", "Done")
    alone = chat_of(Messages(), messages=[USER, used("a"), used("b"), result("a"), result("b")])
    assert (
        alone["messages"][1] == chat_of(Messages(), messages=[USER, used("a", "b")])["messages"][1]
    )


async def test_the_vendors_clients_read_thoughts_and_mixed_calls() -> None:
    deltas = [
        {"reasoning_content": "hm"},
        {"content": "See."},
        {"tool_calls": [call(0, "look_up", '{"q"', "a"), call(1, "now", "{", "b")]},
        {"tool_calls": [call(0, text=": 1}"), call(1, text="}")]},
    ]
    async with bench_of(stub=OddEngine(deltas=deltas)) as bench:
        async with bench.openai().responses.stream(model="reef", input="Hi") as stream:
            last: Any = [event async for event in stream][-1]
        response = last.response
        assert [item.type for item in response.output] == [
            "reasoning", "message", "function_call", "function_call",
        ]  # fmt: skip
        assert [item.arguments for item in response.output[2:]] == ['{"q": 1}', "{}"]
        client = anthropic.AsyncAnthropic(base_url=str(bench.http.base_url), api_key="k")
        asked: Any = {"model": "reef", "max_tokens": 9, "messages": [USER]}
        thinking: Any = {"type": "enabled", "budget_tokens": 1024}
        async with client.messages.stream(**asked, thinking=thinking) as events:
            message: Any = await events.get_final_message()
        await client.close()
    assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    assert message.content[2].input == {"q": 1}
    assert message.stop_reason == "tool_use"
