"""Messages and Responses: around the same chat, recorded as it, with their own shapes and errors."""

import json
from contextlib import nullcontext
from typing import Any

import httpx
import openai
import pytest

from reefcommon.ids import shard_in
from services.gateway.domain.dialects.base import Spelling, Turn
from services.gateway.domain.dialects.growing import Call
from services.gateway.domain.dialects.messages import Messages
from services.gateway.domain.dialects.response_items import call_item
from services.gateway.domain.errors import relayed

from .conftest import Bench

ASK = {"model": "reef", "max_tokens": 3, "messages": [{"role": "user", "content": "Hi"}]}
TOOL = {"name": "look_up", "description": "a city", "input_schema": {"type": "object"}}


async def messages(bench: Bench, scenario: str = "default", **fields: Any) -> httpx.Response:
    headers = {"x-reef-scenario": scenario, "x-api-key": "k", "anthropic-version": "2023-06-01"}
    return await bench.http.post("/v1/messages", json={**ASK, **fields}, headers=headers)


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    found = []
    for frame in answer.text.strip().split("\n\n"):
        name, data = frame.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


async def test_a_message_is_a_chat_and_is_recorded_as_it(bench: Bench) -> None:
    system = [
        {"type": "text", "text": "x-anthropic-billing-header: cch=12;"},
        {"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}},
    ]
    answer = await messages(bench, system=system, stop_sequences=["END"], temperature=0.5)
    body = answer.json()
    receipt = answer.headers["x-reef-agent-record-id"]
    assert body["content"] == [{"type": "text", "text": "Hello there friend", "citations": []}]
    assert (body["stop_reason"], body["id"]) == ("end_turn", f"msg_{receipt}")
    assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == (3, 3)
    sent = bench.engine.requests[-1]
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, *ASK["messages"]]
    assert (sent["stop"], sent["temperature"], sent["max_tokens"]) == (["END"], 0.5, 3)
    (record,) = bench.log.records
    assert (record.dialect, record.api, record.event_id) == (
        "messages",
        "chat.completions",
        receipt,
    )
    assert record.request["messages"] == sent["messages"]
    assert record.completions[0].token_ids
    assert shard_in(receipt) is not None


async def test_a_stream_of_messages_ends_with_the_receipt(bench: Bench) -> None:
    answer = await messages(bench, stream=True)
    found = events(answer)
    assert [event["type"] for event in found] == [
        "message_start", "content_block_start", *["content_block_delta"] * 3,
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip
    assert "".join(e["delta"]["text"] for e in found[2:5]) == "Hello there friend"
    assert found[-2]["delta"]["stop_reason"] == "end_turn"
    assert (found[-2]["usage"]["input_tokens"], found[-2]["usage"]["output_tokens"]) == (3, 3)
    receipt = answer.headers["x-reef-agent-record-id"]
    assert found[-1]["reef"] == {"agent_record_id": receipt}
    assert bench.log.records[-1].stream


@pytest.mark.parametrize("stream", [False, True])
async def test_parallel_tools_and_their_results_keep_the_models_own_text(
    bench: Bench, stream: bool
) -> None:
    answer = await messages(bench, "tools", tools=[TOOL], stream=stream)
    if stream:
        blocks: list[dict[str, Any]] = []
        for event in events(answer):
            if event["type"] == "content_block_start":
                blocks.append({**event["content_block"], "text": ""})
            elif event["type"] == "content_block_delta":
                blocks[event["index"]]["text"] += event["delta"]["partial_json"]
        uses = [{**block, "input": json.loads(block.pop("text"))} for block in blocks]
        reason = next(e for e in events(answer) if e["type"] == "message_delta")
        assert reason["delta"]["stop_reason"] == "tool_use"
    else:
        uses = answer.json()["content"]
        assert answer.json()["stop_reason"] == "tool_use"
    assert [(use["name"], use["input"]) for use in uses] == [
        ("look_up", {"city": "Paris"}), ("now", {}),
    ]  # fmt: skip
    results = [
        {"type": "tool_result", "tool_use_id": use["id"], "content": f"result {n}"}
        for n, use in enumerate(uses)
    ]
    results[1] |= {"is_error": True, "content": [{"type": "text", "text": "no clock"}]}
    turns = [
        *ASK["messages"],
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "…"}, *uses]},
        {"role": "user", "content": [*results, {"type": "text", "text": "go on"}]},
    ]
    assert (await messages(bench, messages=turns, tools=[TOOL])).status_code == 200
    _, called, first, second, last = bench.engine.requests[-1]["messages"]
    texts = [call["function"]["arguments"] for call in called["tool_calls"]]
    assert texts[0] == '{"city": "Paris"}', "as the model wrote it"
    assert (first["role"], first["tool_call_id"], first["content"]) == (
        "tool", uses[0]["id"], "result 0",
    )  # fmt: skip
    assert second["content"] == "Error: no clock"
    assert last == {"role": "user", "content": "go on"}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "user, assistant or system"),
        ({"messages": [{"role": "user", "content": 5}]}, "list of objects"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "document"),
        ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "vendor's servers"),
        ({"tools": [{"input_schema": {}}]}, "name"),
        ({"tool_choice": {"type": "perhaps"}}, "tool_choice"),
        ({"stream": "yes"}, "stream"),
        ({"system": [{"type": "image"}]}, "system"),
    ],
)
async def test_a_malformed_message_is_refused_in_its_own_shape(
    bench: Bench, fields: dict[str, Any], says: str
) -> None:
    answer = await messages(bench, **fields)
    body = answer.json()
    assert answer.status_code == 400
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert says in body["error"]["message"]
    assert bench.engine.requests == []


@pytest.mark.parametrize(
    ("scenario", "status", "kind"),
    [
        ("limited", 429, "rate_limit_error"),
        ("broken", 500, "api_error"),
        ("nowhere", 404, "not_found_error"),
    ],
)
async def test_errors_have_the_vendors_types(
    bench: Bench, scenario: str, status: int, kind: str
) -> None:
    answer = await messages(bench, scenario)
    assert (answer.status_code, answer.json()["error"]["type"]) == (status, kind)
    if status == 429:
        assert answer.headers["retry-after"] == "7"


@pytest.mark.parametrize("words", ["maximum context length is 8 tokens", "another fault"])
async def test_a_full_context_is_said_in_the_vendors_words(words: str) -> None:
    error = relayed(400, {"message": words, "type": "BadRequestError", "code": 400})
    told = Messages().error(400, error)["error"]
    assert told["type"] == "invalid_request_error"
    assert told["message"] == ("prompt is too long: " if "context" in words else "") + words


@pytest.mark.parametrize("scenario", ["cut", "misfire"])
async def test_a_broken_stream_has_no_clean_end(bench: Bench, scenario: str) -> None:
    found = events(await messages(bench, scenario, stream=True))
    assert found[-1]["type"] == "error"
    assert "message_stop" not in [event["type"] for event in found]
    assert bench.log.records[-1].outcome in ("failed", "upstream_incomplete")


async def test_a_stream_that_cannot_be_recorded_has_no_clean_end(bench: Bench) -> None:
    bench.log.broken = True
    found = events(await messages(bench, stream=True))
    assert found[-1]["type"] == "error"
    assert "message_stop" not in [event["type"] for event in found]


async def test_a_repeat_under_a_key_gets_the_same_message(bench: Bench) -> None:
    headers = {"x-reef-agent-record-id": "mine-1"}
    first, again = [
        await bench.http.post("/v1/messages", json=ASK, headers=headers) for _ in range(2)
    ]
    assert first.json() == again.json()
    assert len(bench.engine.requests) == 1


async def test_tokens_are_counted_and_nothing_is_recorded(bench: Bench) -> None:
    body = {"model": "reef", "system": "Be brief.", "messages": ASK["messages"], "tools": [TOOL]}
    answer = await bench.http.post("/v1/messages/count_tokens", json=body)
    assert answer.json() == {"input_tokens": 7}
    assert [m["role"] for m in bench.engine.requests[-1]["messages"]] == ["system", "user"]
    assert bench.log.records == []


async def test_the_openai_client_reads_a_response(bench: Bench) -> None:
    client = bench.openai()
    made = await client.responses.create(
        model="reef", input="Hi", instructions="Be brief.", max_output_tokens=3,
        metadata={"a": "b"},
    )  # fmt: skip
    assert (made.output_text, made.status) == ("Hello there friend", "completed")
    assert made.usage.total_tokens == 6
    (record,) = bench.log.records
    assert made.id == f"resp_{record.event_id}"
    assert made.metadata == {"a": "b", "reef_agent_record_id": record.event_id}
    assert record.dialect == "responses"
    assert [m["role"] for m in record.request["messages"]] == ["system", "user"]


async def test_the_openai_client_reads_a_stream_of_a_response(bench: Bench) -> None:
    client = bench.openai()
    async with client.responses.stream(model="reef", input="Hi") as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-1] == "response.completed"
    assert final.output_text == "Hello there friend"


@pytest.mark.parametrize("stream", [False, True])
async def test_calls_of_a_response_and_their_outputs(bench: Bench, stream: bool) -> None:
    client = bench.openai(x_reef_scenario="tools")
    tools = [{"type": "function", "name": "look_up", "parameters": {"type": "object"}}]
    if stream:
        async with client.responses.stream(model="reef", input="Hi", tools=tools) as events_:
            async for _ in events_:
                pass
            made = await events_.get_final_response()
    else:
        made = await client.responses.create(model="reef", input="Hi", tools=tools)
    calls = [item for item in made.output if item.type == "function_call"]
    assert [(c.name, c.arguments) for c in calls] == [
        ("look_up", '{"city": "Paris"}'),
        ("now", "{}"),
    ]
    given = [
        {"role": "user", "content": "Hi"},
        *({"type": "function_call", "call_id": c.call_id, "name": c.name, "arguments": c.arguments} for c in calls),
        *({"type": "function_call_output", "call_id": c.call_id, "output": "x"} for c in calls),
    ]  # fmt: skip
    await bench.openai().responses.create(model="reef", input=given)
    _, called, *results = bench.engine.requests[-1]["messages"]
    assert [c["id"] for c in called["tool_calls"]] == [c.call_id for c in calls]
    assert [r["tool_call_id"] for r in results] == [c.call_id for c in calls]


async def test_a_response_goes_on_after_an_earlier_one(bench: Bench) -> None:
    client = bench.openai()
    first = await client.responses.create(model="reef", input="Hi", instructions="Be brief.")
    (record,) = bench.log.records
    event = json.loads(record.model_dump_json())
    bench.reads.rows[f"/records/{record.event_id}"] = {"record": event}
    await client.responses.create(
        model="reef", input="And now?", previous_response_id=first.id, instructions="Be long."
    )
    assert [(m["role"], m["content"]) for m in bench.engine.requests[-1]["messages"]] == [
        ("system", "Be long."), ("user", "Hi"), ("assistant", "Hello there friend"),
        ("user", "And now?"),
    ]  # fmt: skip


async def test_a_result_follows_its_call_of_an_earlier_response(bench: Bench) -> None:
    client = bench.openai(x_reef_scenario="tools")
    first = await client.responses.create(model="reef", input="Hi")
    (record,) = bench.log.records
    event = json.loads(record.model_dump_json())
    bench.reads.rows[f"/records/{record.event_id}"] = {"record": event}
    calls = [item.call_id for item in first.output if item.type == "function_call"]
    results = [{"type": "function_call_output", "call_id": n, "output": n} for n in calls]
    said = {"role": "user", "content": "Look again."}
    given = [results[0], said, *results[1:]]
    await client.responses.create(model="reef", input=given, previous_response_id=first.id)
    assert [m["role"] for m in bench.engine.requests[-1]["messages"]] == [
        "user", "assistant", *["tool"] * len(calls), "user",
    ]  # fmt: skip


async def test_an_earlier_response_of_another_scenario_is_not_found(bench: Bench) -> None:
    client = bench.openai()
    first = await client.responses.create(model="reef", input="Hi")
    (record,) = bench.log.records
    event = json.loads(record.model_dump_json())
    bench.reads.rows[f"/records/{record.event_id}"] = {"record": event}
    for name, scenario in ((first.id, "slow"), ("resp_", "default"), ("x", "default")):
        other = bench.openai(x_reef_scenario=scenario)
        with pytest.raises(openai.NotFoundError):
            await other.responses.create(model="reef", input="b", previous_response_id=name)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"input": []}, "input"),
        ({"input": 5}, "list of objects"),
        ({"input": [{"role": "robot", "content": "x"}]}, "role"),
        ({"input": [{"type": "computer_call"}]}, "computer_call"),
        ({"input": "x", "tools": [{"type": "web_search"}]}, "vendor's servers"),
        ({"input": "x", "background": True}, "background"),
    ],
)
async def test_a_malformed_response_is_refused(
    bench: Bench, fields: dict[str, Any], says: str
) -> None:
    answer = await bench.http.post("/v1/responses", json={"model": "reef", **fields})
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses", "/v1/messages/count_tokens"])
async def test_other_methods_and_bodies_are_refused(bench: Bench, path: str) -> None:
    assert (await bench.http.get(path)).status_code == 405
    deep = b'{"max_tokens": 1, "messages": ' + b"[" * 900 + b"]" * 900 + b"}"
    for body in (b"", b"[]", b"{", b"null", deep):
        answer = await bench.http.post(path, content=body)
        assert answer.status_code == 400, (body[:40], answer.text)
        assert answer.json()["error"]["message"]


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{"message": None}]}])
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/responses"])
async def test_an_answer_that_is_no_chat_is_the_nodes_fault(
    bench: Bench, path: str, answer: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.gateway.stub_engine.whole", lambda _body: answer)
    body = ASK if path == "/v1/messages" else {"model": "reef", "input": "Hi"}
    found = await bench.http.post(path, json=body)
    assert found.status_code == 502
    assert "no chat" in found.json()["error"]["message"]


async def test_system_texts_go_where_templates_take_them(bench: Bench) -> None:
    turns = [
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "system", "content": [{"type": "text", "text": "The day is Monday."}]},
        {"role": "assistant", "content": "Hello"},
        {"role": "system", "content": "Now it is Tuesday."},
    ]
    assert (await messages(bench, messages=turns, system="Be brief.")).status_code == 200
    sent = [(m["role"], m["content"]) for m in bench.engine.requests[-1]["messages"]]
    assert sent == [
        ("system", "Be brief."),
        ("user", "Hi\n\nThe day is Monday."),
        ("assistant", "Hello"),
        ("user", "Now it is Tuesday."),
    ]
    given = [{"role": "developer", "content": text} for text in ("One.", "Two.")]
    body = {"model": "reef", "input": [*given, {"role": "user", "content": "Hi"}]}
    assert (await bench.http.post("/v1/responses", json=body)).status_code == 200
    sent = [(m["role"], m["content"]) for m in bench.engine.requests[-1]["messages"]]
    assert sent == [("system", "One.\n\nTwo."), ("user", "Hi")]
    later = [{"role": "assistant", "content": "Hello"}, {"role": "developer", "content": "Three."}]
    body["input"] = [*body["input"], given[0], *later, {"role": "user", "content": "Bye"}]
    body |= {"instructions": "Be brief.", "store": False}
    assert (await bench.http.post("/v1/responses", json=body)).status_code == 200
    sent = [(m["role"], m["content"]) for m in bench.engine.requests[-1]["messages"]]
    assert sent == [
        ("system", "Be brief.\n\nOne.\n\nTwo."),
        ("user", "Hi\n\nOne."),
        ("assistant", "Hello"),
        ("user", "Three."),
        ("user", "Bye"),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_tools_of_a_namespace(bench: Bench, stream: bool) -> None:
    inner = [{"type": "function", "name": "b__up", "parameters": {"type": "object"}}]
    space = {"type": "namespace", "name": "a", "description": "of a", "tools": inner}
    plain = {"type": "function", "name": "look_up", "parameters": {"type": "object"}}
    client = bench.openai(x_reef_scenario="tools")
    asked: Any = {"model": "reef", "input": "Hi", "tools": [space, plain]}
    async with client.responses.stream(**asked) if stream else nullcontext() as live:
        if live is None:
            made = await client.responses.create(**asked)
        else:
            async for _ in live:
                pass
            made = await live.get_final_response()
    names = [tool["function"]["name"] for tool in bench.engine.requests[-1]["tools"]]
    assert names == ["a__b__up", "look_up"]
    assert [item.name for item in made.output if item.type == "function_call"] == ["look_up", "now"]
    call = {
        "type": "function_call",
        "call_id": "c",
        "namespace": "a",
        "name": "b__up",
        "arguments": "{}",
    }
    output = [
        {"type": "input_text", "text": "seen"},
        {"type": "input_image", "image_url": "data:x"},
    ]
    given = [call, {"type": "function_call_output", "call_id": "c", "output": output}]
    body = {"model": "reef", "input": [{"role": "user", "content": "Hi"}, *given], "tools": [space]}
    assert (await bench.http.post("/v1/responses", json=body)).status_code == 200
    _, called, told, shown = bench.engine.requests[-1]["messages"]
    assert called["tool_calls"][0]["function"]["name"] == "a__b__up"
    assert told["content"] == "seen"
    assert shown["content"] == [{"type": "image_url", "image_url": {"url": "data:x"}}]


def test_a_call_goes_back_to_its_namespace() -> None:
    space = {"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "up"}]}
    turn = Turn({"tools": [space]}, {}, False, "reef", Spelling())
    item = call_item(turn, Call(0, "c", "a__up", "{}"))
    assert (item["namespace"], item["name"]) == ("a", "up")
    plain = call_item(turn, Call(0, "c", "up", ""))
    assert ("namespace" in plain, plain["name"]) == (False, "up")


@pytest.mark.parametrize("header", ["session_id", "x-claude-code-session-id", "thread-id"])
async def test_the_header_that_an_agent_sends_names_its_session(bench: Bench, header: str) -> None:
    answer = await bench.chat(headers={header: "s-1"})
    assert answer.headers["x-reef-session-id"] == bench.log.records[-1].session_tag == "s-1"
    both = await bench.chat(headers={header: "s-1", "x-reef-tag-session": "mine"})
    assert both.headers["x-reef-session-id"] == "mine"
