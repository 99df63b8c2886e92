"""A conversation that grows turn by turn is one session, and one sequence of tokens, in each format."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from tests.experience.test_turns import Rig

from .conftest import Bench, bench_of
from .scripted_engine import ScriptedEngine, call

SPACED = '{"city":  "Paris",\n "days": [1,2]}'
SCRIPT: tuple[dict[str, Any], ...] = (
    {"content": "Let me see.", "tool_calls": [call(1, "look_up", SPACED), call(2, "now", "{}")]},
    {"content": None, "tool_calls": [call(3, "look_up", '{"city":"Rome"}')]},
    {"content": "It rains in both."},
    {"content": "You are welcome."},
)
RESULTS = {"call_1": "rain", "call_2": "noon", "call_3": "rain, too"}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}


def by_turn(body: dict[str, Any], **thoughts: str) -> dict[str, Any]:
    turn = sum(message["role"] == "assistant" for message in body["messages"])
    said = SCRIPT[turn] if body.get("tools") else {"content": f"answer {turn}"}
    return {**said, **{name: f"{text} {turn}…" for name, text in thoughts.items()}}


@pytest.fixture(params=["", "reasoning", "reasoning_content"])
async def bench(request: pytest.FixtureRequest) -> AsyncIterator[Bench]:
    """A node without thoughts, or with thoughts in vLLM's or SGLang's field."""
    named = {request.param: "So, turn"} if request.param else {}
    node = ScriptedEngine(partial(by_turn, **named), request.param or "reasoning")
    async with bench_of(stub=node) as made:
        yield made


Talk = Callable[[Bench, bool, bool], Awaitable[None]]


async def posted(bench: Bench, path: str, body: dict[str, Any], *, stream: bool) -> list[Any]:
    """Return the answer, or the events of a stream."""
    answer = await bench.http.post(path, json={"model": "reef", **body, "stream": stream})
    assert answer.status_code == 200, answer.text
    if not stream:
        return [answer.json()]
    lines = [line for line in answer.text.splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def by_chat(bench: Bench, tools: bool, stream: bool) -> None:
    given = [
        {"type": "function", "function": {"name": n, "parameters": SCHEMA}}
        for n in ("look_up", "now")
    ]
    messages: list[Any] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Weather?"},
    ]
    for turn in range(4):
        await posted(
            bench,
            "/v1/chat/completions",
            {"messages": messages, **({"tools": given} if tools else {})},
            stream=stream,
        )
        response = bench.log.records[-1].response
        assert response is not None
        message = response["choices"][0]["message"]
        calls = message.get("tool_calls") or ()
        results = [
            {"role": "tool", "tool_call_id": c["id"], "content": RESULTS[c["id"]]} for c in calls
        ]
        messages += [message, *(results or [{"role": "user", "content": f"thanks {turn}"}])]


async def by_messages(bench: Bench, tools: bool, stream: bool) -> None:
    given = [{"name": n, "input_schema": SCHEMA} for n in ("look_up", "now")]
    messages: list[Any] = [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "Weather?", "cache_control": {"type": "ephemeral"}}
            ],
        }
    ]
    for turn in range(4):
        system = [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1; cch={turn};"},
            {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
        ]
        body = {
            "max_tokens": 99,
            "system": system,
            "messages": messages,
            "thinking": {"type": "adaptive"},
        }
        found = await posted(
            bench, "/v1/messages", {**body, **({"tools": given} if tools else {})}, stream=stream
        )
        content = blocks(found) if stream else found[0]["content"]
        results = [
            {"type": "tool_result", "tool_use_id": b["id"], "content": [{"type": "text", "text": RESULTS[b["id"]]}]}
            for b in content if b["type"] == "tool_use"
        ]  # fmt: skip
        hidden = {"type": "redacted_thinking", "data": "…"}
        # An agent keeps a parsed object, so its order and spaces are lost on the way.
        messages = [
            json.loads(json.dumps(m).replace(', "cache_control": {"type": "ephemeral"}', ""))
            for m in messages
        ]
        messages += [{"role": "assistant", "content": [hidden, *content]}]
        messages += [{"role": "user", "content": results or f"thanks {turn}"}]


def blocks(events: list[Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for event in events:
        if event["type"] == "content_block_start":
            found.append({**event["content_block"], "json": ""})
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            name = delta["type"].removesuffix("_delta")
            if name == "input_json":
                found[event["index"]]["json"] += delta["partial_json"]
            else:
                found[event["index"]][name] += delta[name]
    for block in found:
        text = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(text)
    return found


async def by_responses(bench: Bench, tools: bool, stream: bool) -> None:
    items: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "Weather?"}]}]
    for turn in range(4):
        output = await responded(bench, {"input": items}, tools, stream)
        items += [{"type": "reasoning", "summary": []}, *output, *followed(output, turn)]


async def by_earlier_responses(bench: Bench, tools: bool, stream: bool) -> None:
    body: dict[str, Any] = {"input": "Weather?"}
    for turn in range(4):
        output = await responded(bench, body, tools, stream)
        record = bench.log.records[-1]
        row = {"record": json.loads(record.model_dump_json())}
        bench.reads.rows[f"/records/{record.event_id}"] = row
        body = {"input": followed(output, turn), "previous_response_id": f"resp_{record.event_id}"}


async def responded(bench: Bench, body: dict[str, Any], tools: bool, stream: bool) -> list[Any]:
    given = [{"type": "function", "name": n, "parameters": SCHEMA} for n in ("look_up", "now")]
    asked = {"instructions": "Be brief.", **body, **({"tools": given} if tools else {})}
    found = await posted(bench, "/v1/responses", asked, stream=stream)
    output: list[Any] = (found[-1]["response"] if stream else found[0])["output"]
    return output


def followed(output: list[Any], turn: int) -> list[Any]:
    calls = [item["call_id"] for item in output if item["type"] == "function_call"]
    results = [{"type": "function_call_output", "call_id": c, "output": RESULTS[c]} for c in calls]
    return results or [{"role": "user", "content": f"thanks {turn}"}]


@pytest.mark.parametrize("bare", [{"arguments": ""}, {"arguments": None}, {}])
async def test_a_call_without_arguments_goes_to_the_node_with_none(
    bench: Bench, bare: dict[str, Any]
) -> None:
    """Some chat templates refuse an empty text; the record is what the client sent."""
    made = {"id": "call_2", "type": "function", "function": {"name": "now", **bare}}
    full = call(3, "look_up", SPACED)
    spoken = {"role": "assistant", "content": "", "tool_calls": [made, full]}
    results = [{"role": "tool", "tool_call_id": f"call_{n}", "content": "noon"} for n in (2, 3)]
    messages = [{"role": "user", "content": "Time?"}, spoken, *results]
    await posted(bench, "/v1/chat/completions", {"messages": messages}, stream=False)
    sent, kept = bench.engine.requests[-1], bench.log.records[-1].request
    assert kept["messages"] == messages
    calls = sent["messages"][1].pop("tool_calls")
    assert [one["function"]["arguments"] for one in calls] == ["{}", SPACED]
    del messages[1]["tool_calls"]
    assert sent["messages"] == messages


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("tools", [False, True], ids=["plain", "tools"])
@pytest.mark.parametrize("talk", [by_chat, by_messages, by_responses, by_earlier_responses])
async def test_four_turns_are_one_session_of_one_sequence(
    bench: Bench, talk: Talk, tools: bool, stream: bool
) -> None:
    await talk(bench, tools, stream)
    records = bench.log.records
    assert [len(record.completions) for record in records] == [1, 1, 1, 1]
    assert len({record.event_id.rsplit("-", 1)[-1][-4:] for record in records}) == 1
    rig = Rig()
    await rig.take(*records[:-1], records[-1].model_copy(update={"session_end": True}))
    (session,) = rig.sessions
    assert session.record_ids == tuple(record.event_id for record in records)
    assert session.parts == 1
    lengths = [len(record.completions[0].token_ids) for record in records]
    assert sum(session.loss_mask) == sum(lengths)
    told = bytes(session.tokens).decode()
    assert told.count("[assistant]") == 4
    thoughts = bench.engine.script.keywords
    assert told.count("<think>So, turn") == (4 if thoughts else 0)
    if tools:
        assert SPACED in told
        assert [len(m) for _, ended, m in rig.turns if ended == "followed"] == [2, 1, 1]
