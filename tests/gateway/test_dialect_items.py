"""Documents in messages; custom tools and references to items in responses."""

import json
from typing import Any

import openai
import pytest
from openai.types.responses import ResponseCustomToolCall

from services.gateway.domain.dialects.base import Spelling, Turn
from services.gateway.domain.dialects.messages import Messages
from services.gateway.domain.dialects.response_events import ResponseEvents
from services.gateway.domain.dialects.responses import Responses
from services.gateway.domain.errors import ApiError

from .conftest import Bench
from .test_dialect_forms import USER, call, chat_of, end, piece, streamed, whole

SHELL = {"type": "custom", "name": "shell", "description": "Runs it."}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}


def document(**source: Any) -> dict[str, Any]:
    return {"type": "document", "source": source}


def test_a_document_of_text_reaches_the_model() -> None:
    plain = document(type="text", media_type="text/plain", data="The sky is green.")
    parts = document(type="content", content=[{"type": "text", "text": "Grass is blue."}])
    titled = {**plain, "title": "Colours", "citations": {"enabled": True}}
    said = {"role": "user", "content": [titled, parts, {"type": "text", "text": "Which?"}]}
    (message,) = chat_of(Messages(), messages=[said])["messages"]
    assert [part["text"] for part in message["content"]] == [
        "Colours\n<document>\nThe sky is green.\n</document>",
        "<document>\nGrass is blue.\n</document>",
        "Which?",
    ]


def test_documents_and_search_results_of_a_tool_reach_the_model() -> None:
    plain = document(type="text", media_type="text/plain", data="The sky is green.")
    parts = [{"type": "text", "text": "Grass is blue."}, {"type": "text", "text": "Snow is red."}]
    hit = {"type": "search_result", "source": "notes/3", "title": "Colours", "content": parts}
    shown = [
        "<document>\nThe sky is green.\n</document>",
        "Colours\nnotes/3\n<document>\nGrass is blue.\nSnow is red.\n</document>",
    ]
    use = {"type": "tool_use", "id": "a", "name": "find", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [plain, hit]}
    turns = [USER, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    *_, told = chat_of(Messages(), messages=turns)["messages"]
    assert told == {"role": "tool", "tool_call_id": "a", "content": "\n".join(shown)}
    said = {"role": "user", "content": [plain, hit]}
    (message,) = chat_of(Messages(), messages=[said])["messages"]
    assert [part["text"] for part in message["content"]] == shown
    result["content"] = [document(type="base64", data="JVBERi0=")]
    with pytest.raises(ApiError, match="send its text"):
        chat_of(Messages(), messages=turns)


@pytest.mark.parametrize("kind", ["base64", "url", "file", None])
def test_another_document_is_refused_with_a_way_out(kind: str | None) -> None:
    said = {"role": "user", "content": [document(type=kind, data="JVBERi0=")]}
    with pytest.raises(ApiError, match="send its text, as a source of type text or content"):
        chat_of(Messages(), messages=[said])


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    tools = [SHELL, {**SHELL, "name": "patch", "format": GRAMMAR}]
    chat = chat_of(Responses(), tools=tools, tool_choice={"type": "custom", "name": "shell"})
    shell, patch = (tool["function"] for tool in chat["tools"])
    assert shell["parameters"]["required"] == ["input"]
    assert shell["description"] == "Runs it."
    assert patch["description"].endswith("follows this lark grammar:\nstart: /.+/")
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "shell"}}


def test_a_call_of_a_custom_tool_is_told_and_comes_back_as_the_model_wrote_it() -> None:
    written = '{"input":"ls -l"}'
    chunks = [piece(tool_calls=[call(0, "shell", part, "c1")]) for part in (written[:9], "")]
    chunks += [piece(tool_calls=[call(0, "", written[9:])]), end("tool_calls")]
    events = streamed(ResponseEvents, chunks, tools=[SHELL])
    (item,) = events[-1]["response"]["output"]
    assert (item["type"], item["input"], item["id"]) == ("custom_tool_call", "ls -l", "ctc_R_0")
    ResponseCustomToolCall.model_validate(item)
    told = [event for event in events if "custom_tool_call_input" in event["type"]]
    assert [event.get("delta", event.get("input")) for event in told] == ["ls -l", "ls -l"]
    added = next(event for event in events if event["type"] == "response.output_item.added")
    assert added["item"]["input"] == ""
    calls = [piece(tool_calls=[call(None, "shell", written, "c1")])]
    assert whole(Responses(), calls, "tool_calls", tools=[SHELL])["output"] == [item]

    spelling = Spelling()
    turn = Turn({"tools": [SHELL]}, {}, False, "reef", spelling, receipt="R")
    message = {"content": None, "tool_calls": [call(None, "shell", written, "c1")]}
    Responses().answer(turn, {"choices": [{"message": message, "finish_reason": "tool_calls"}]})
    output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "a.txt"}
    body = {"input": [USER, item, output], "tools": [SHELL]}
    _, called, result = Responses().chat(body, spelling)["messages"]
    assert called["tool_calls"][0]["function"] == {"name": "shell", "arguments": written}
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "a.txt"}


def test_a_call_without_its_input_shows_what_the_model_wrote() -> None:
    (item,) = whole(
        Responses(), [piece(tool_calls=[call(None, "shell", "ls", "c1")])], tools=[SHELL]
    )["output"]
    assert item["input"] == "ls"


async def test_a_reference_is_the_item_of_the_earlier_answer(bench: Bench) -> None:
    client = bench.openai()
    first = await client.responses.create(model="reef", input="Hi")
    (record,) = bench.log.records
    event = json.loads(record.model_dump_json())
    bench.reads.rows[f"/records/{record.event_id}"] = {"record": event}
    tooled = json.loads(json.dumps(event))
    message = tooled["response"]["choices"][0]["message"]
    message["tool_calls"] = [
        {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        for number in range(2)
    ]
    bench.reads.rows["/records/rec-tooled"] = {"record": tooled}

    def named(name: str) -> dict[str, str]:
        return {"type": "item_reference", "id": name}

    given: list[Any] = [
        {"role": "user", "content": "Hi"},
        named(f"rs_{record.event_id}"),
        named(first.output[0].id),
        {"role": "user", "content": "More"},
        named("fc_rec-tooled_1"),
        {"type": "function_call_output", "call_id": "c1", "output": "x"},
    ]
    await client.responses.create(model="reef", input=given)
    assert [(m["role"], m["content"]) for m in bench.engine.requests[-1]["messages"]] == [
        ("user", "Hi"), ("assistant", "Hello there friend"), ("user", "More"),
        ("assistant", None), ("tool", "x"),
    ]  # fmt: skip
    for name in ("fc_rec-tooled_2", "fc_rec-tooled", "msg_", "x", "../secret"):
        with pytest.raises(openai.NotFoundError, match="is not known here"):
            await client.responses.create(model="reef", input=[named(name)])
    with pytest.raises(openai.NotFoundError):
        await bench.openai(x_reef_scenario="slow").responses.create(model="reef", input=given)
