"""The model's thoughts go to the client and come back with its next request, in both formats."""

import time
from typing import Any

import anthropic
import openai
import pytest

from services.gateway.domain.dialects.message_events import MessageEvents
from services.gateway.domain.dialects.messages import Messages
from services.gateway.domain.dialects.responses import Responses

from .conftest import bench_of
from .scripted_engine import ScriptedEngine, call
from .test_dialect_forms import CALL, OUTPUT, SAID, USER, blocks, chat_of, end, piece, streamed

THOUGHT = "Rain?\nLook it up: 雨"
TOOL: Any = {"name": "now", "input_schema": {"type": "object"}}
FUNCTION: Any = {"type": "function", "name": "now", "parameters": {"type": "object"}}
SEALED = "reasoning.encrypted_content"


def script(body: dict[str, Any]) -> dict[str, Any]:
    if body["messages"][-1]["role"] == "tool":
        return {"content": "Noon.", "reasoning": "So it is."}
    return {"content": None, "reasoning": THOUGHT, "tool_calls": [call(1, "now", "{}")]}


def told(engine: ScriptedEngine) -> list[Any]:
    """Return the thoughts of each assistant's message of the last request; both fields agree."""
    said = [m for m in engine.requests[-1]["messages"] if m["role"] == "assistant"]
    assert [m.get("reasoning") for m in said] == [m.get("reasoning_content") for m in said]
    return [message.get("reasoning") for message in said]


@pytest.mark.parametrize("display", ["summarized", "omitted"])
@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_goes_on_in_a_loop_of_tools(stream: bool, display: str) -> None:
    engine = ScriptedEngine(script)
    async with (
        bench_of(stub=engine) as bench,
        anthropic.AsyncAnthropic(base_url=bench.url, api_key="k", max_retries=0) as client,
    ):
        thinking: Any = {"type": "adaptive", "display": display}
        turns: list[Any] = [USER]
        for _ in range(2):
            asked: Any = {"model": "reef", "max_tokens": 99, "tools": [TOOL], "messages": turns}
            if stream:
                async with client.messages.stream(**asked, thinking=thinking) as events:
                    message: Any = await events.get_final_message()
            else:
                message = await client.messages.create(**asked, thinking=thinking)
            first, last = message.content
            shown = first.thinking
            assert first.signature, "some clients make a text of thoughts without one"
            result = {"type": "tool_result", "tool_use_id": "call_1", "content": "noon"}
            turns += [{"role": "assistant", "content": [first, last]}]
            turns += [{"role": "user", "content": [result]}]
        assert last.text == "Noon."
        assert shown == ("" if display == "omitted" else "So it is.")
        assert told(engine) == [THOUGHT]
        await client.messages.count_tokens(model="reef", messages=turns, tools=[TOOL])
        assert told(engine) == [THOUGHT, "So it is."]


@pytest.mark.parametrize("keeps", ["all", "the seal"])
@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_items_go_on_in_a_loop_of_tools(stream: bool, keeps: str) -> None:
    engine = ScriptedEngine(script)
    async with bench_of(stub=engine) as bench:
        client, items = bench.openai(), [{"role": "user", "content": "Time?"}]
        include: Any = {"include": [SEALED], "store": False} if keeps == "the seal" else {}
        for _ in range(2):
            asked: Any = {"model": "reef", "input": items, "tools": [FUNCTION], **include}
            if stream:
                async with client.responses.stream(**asked) as events:
                    response: Any = await events.get_final_response()
            else:
                response = await client.responses.create(**asked)
            thought, last = response.output
            assert (thought.encrypted_content is None) is (keeps == "all")
            if keeps == "the seal":  # as a client of the vendor's own models keeps it
                thought.content = None
            items += [thought.to_dict(), last.to_dict()]
            items += [{"type": "function_call_output", "call_id": "call_1", "output": "noon"}]
        assert last.content[0].text == "Noon."
        assert told(engine) == [THOUGHT]
        items[-1] = USER
        await client.responses.create(model="reef", input=items, tools=[FUNCTION])
        assert told(engine) == [THOUGHT, "So it is."]


async def test_a_reference_to_thoughts_is_the_thoughts_of_the_answer() -> None:
    engine = ScriptedEngine(script)
    async with bench_of(stub=engine) as bench:
        client: openai.AsyncOpenAI = bench.openai()
        given: list[Any] = [USER]
        first = await client.responses.create(model="reef", input=given, tools=[FUNCTION])
        (record,) = bench.log.records
        row = {"record": record.model_dump(mode="json")}
        bench.reads.rows[f"/records/{record.event_id}"] = row
        given += [{"type": "item_reference", "id": item.id} for item in first.output]
        given += [{"type": "function_call_output", "call_id": "call_1", "output": "noon"}]
        await client.responses.create(model="reef", input=given, tools=[FUNCTION])
        assert told(engine) == [THOUGHT]


def reasoning(*texts: str, **more: Any) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text} for text in texts]
    return {"type": "reasoning", "summary": [], "content": content, **more}


SUMMARY = {"summary": [{"type": "summary_text", "text": "in short"}]}


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ([reasoning("a"), CALL, OUTPUT], [("a", None, 1)]),
        ([reasoning("a"), SAID, CALL, OUTPUT], [("a", "t", 1)]),
        ([SAID, reasoning("a"), CALL, OUTPUT], [("a", "t", 1)]),
        ([CALL, reasoning("a"), CALL, OUTPUT, OUTPUT], [("a", None, 2)]),
        ([reasoning("a"), CALL, OUTPUT, reasoning("b"), SAID], [("a", None, 1), ("b", "t", 0)]),
        ([reasoning("a"), USER, reasoning("b"), SAID], [("a", "", 0), ("b", "t", 0)]),
        ([reasoning(**SUMMARY), SAID], [("in short", "t", 0)]),
        ([reasoning("a", **SUMMARY), SAID], [("a", "t", 0)]),
        ([reasoning(encrypted_content="gAAAAB"), SAID], [(None, "t", 0)]),
        ([{"type": "reasoning", "summary": []}, SAID], [(None, "t", 0)]),
    ],
)
def test_reasoning_items_belong_to_the_answer_they_are_beside(given: Any, found: Any) -> None:
    said = chat_of(Responses(), input=[USER, *given])["messages"]
    assert [
        (m.get("reasoning"), m["content"], len(m.get("tool_calls", ())))
        for m in said
        if m["role"] == "assistant"
    ] == found  # fmt: skip


def test_thinking_of_another_maker_is_carried_if_it_can_be_read() -> None:
    opaque = [
        {"type": "thinking", "thinking": "", "signature": "EqQBCg"},
        {"type": "redacted_thinking", "data": "EmwKAh"},
    ]
    read = {"type": "thinking", "thinking": "hm", "signature": "EqQBCg"}
    text = {"type": "text", "text": "Yes."}

    def said(*content: Any) -> Any:
        turns = [USER, {"role": "assistant", "content": [*content]}, USER]
        return chat_of(Messages(), messages=turns)["messages"][1]

    assert said(*opaque, text) == {"role": "assistant", "content": "Yes."}
    assert said(read, *opaque, text, read) == {
        "role": "assistant", "content": "Yes.", "reasoning": "hmhm",
    }  # fmt: skip


@pytest.mark.parametrize("odd", [None, 7, ["hm"], [{"type": "other"}], {"text": 5}])
def test_thoughts_that_cannot_be_read_are_left_out(odd: object) -> None:
    """A client sends them again with every later turn: a refusal would end its conversation."""
    block = {"type": "thinking", "thinking": odd, "signature": "x"}
    turn = {"role": "assistant", "content": [block, {"type": "text", "text": "Yes."}]}
    asked = {"role": "user", "content": "Go on."}
    said = [
        *chat_of(Messages(), messages=[asked, turn, asked])["messages"],
        *chat_of(Responses(), input=[USER, reasoning(content=odd, summary=odd), SAID])["messages"],
    ]
    assert len(said) == 5
    assert not [message for message in said if "reasoning" in message]


@pytest.mark.parametrize("messages", [None, "abc", 7, [1]])
async def test_messages_beside_a_prompt_are_not_read(messages: Any) -> None:
    async with bench_of() as bench:
        body = {"model": "reef", "prompt": "x", "messages": messages, "reasoning": "none"}
        assert (await bench.http.post("/v1/completions", json=body)).status_code == 200
        assert bench.engine.requests[-1]["messages"] == messages


def test_many_pieces_of_an_answer_are_joined_once() -> None:
    began = time.process_time()
    text = {"role": "assistant", "content": "雨" * 1000}
    items = [CALL, *[reasoning("雨" * 1000), text] * 8000]
    (_, answer) = chat_of(Responses(), input=[USER, *items])["messages"]
    assert answer["reasoning"] == answer["content"] == "雨" * 8_000_000
    chunks = [*[piece(reasoning="雨" * 100)] * 20_000, end("stop")]
    thinking = {"type": "enabled", "display": "omitted"}
    events = streamed(MessageEvents, chunks, thinking=thinking)
    (seal,) = [found["delta"] for found in events if found["type"] == "content_block_delta"]
    assert seal["signature"].endswith("雨" * 2_000_000)
    assert time.process_time() - began < 4, "each piece has copied those before it"


def test_thoughts_around_a_text_are_blocks_with_seals_of_their_own() -> None:
    chunks = [piece(reasoning="a"), piece(content="So."), piece(reasoning="b"), end("stop")]
    thinking = {"type": "adaptive", "display": "omitted"}
    content = blocks(streamed(MessageEvents, chunks, thinking=thinking))
    assert [block["type"] for block in content] == ["thinking", "text", "thinking"]
    for block in content:
        block["text" if block["type"] == "text" else "thinking"] = block.pop("said")
    turns = [USER, {"role": "assistant", "content": content}, USER]
    assert chat_of(Messages(), messages=turns)["messages"][1] == {
        "role": "assistant", "content": "So.", "reasoning": "ab",
    }  # fmt: skip
