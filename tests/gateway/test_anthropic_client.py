"""The real anthropic client against the gateway: messages, streams, parallel tools, counts, errors."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import pytest

from services.gateway.edge import dialects

from .conftest import Bench, bench_of
from .scripted_engine import ScriptedEngine, agent_script
from .stub_engine import StubEngine

HI: Any = [{"role": "user", "content": "Hi"}]
BASH: Any = [
    {
        "name": "Bash",
        "description": "run a command",
        "input_schema": {"type": "object", "properties": {"command": {"type": "string"}}},
    }
]


async def client_of(bench: Bench, **headers: str) -> AsyncIterator[anthropic.AsyncAnthropic]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with anthropic.AsyncAnthropic(
        base_url=bench.url, api_key="k", max_retries=0, default_headers=named
    ) as client:
        yield client


@pytest.fixture
async def client(bench: Bench) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async for made in client_of(bench):
        yield made


async def test_a_message_has_its_receipt(bench: Bench, client: anthropic.AsyncAnthropic) -> None:
    raw = await client.messages.with_raw_response.create(
        model="reef", max_tokens=3, messages=HI, system="Be brief."
    )
    message = await raw.parse()
    (record,) = bench.log.records
    assert raw.headers["x-reef-agent-record-id"] == record.event_id
    assert message.id == f"msg_{record.event_id}"
    assert message.content[0].text == "Hello there friend"
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", 3)
    assert record.dialect == "messages"


async def test_a_stream_gives_text_and_the_final_message(
    bench: Bench, client: anthropic.AsyncAnthropic
) -> None:
    async with client.messages.stream(model="reef", max_tokens=3, messages=HI) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert text == final.content[0].text == "Hello there friend"
    assert (final.usage.input_tokens, final.usage.output_tokens) == (3, 3)
    assert (
        final.id.endswith(bench.log.records[-1].event_id)
        or final.id == "msg_" + bench.log.records[-1].event_id
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_parallel_tools_and_their_results(stream: bool) -> None:
    async with bench_of(stub=ScriptedEngine(agent_script)) as bench:
        async for client in client_of(bench):
            turns, message = list(HI), None
            for _ in range(2):
                asked: Any = {"model": "reef", "max_tokens": 99, "messages": turns, "tools": BASH}
                if stream:
                    async with client.messages.stream(**asked) as events:
                        message = await events.get_final_message()
                else:
                    message = await client.messages.create(**asked)
                results = [
                    {"type": "tool_result", "tool_use_id": block.id, "content": "done"}
                    for block in message.content
                    if block.type == "tool_use"
                ]
                turns += [{"role": "assistant", "content": message.content}]
                turns += [{"role": "user", "content": results}] if results else []
            assert message is not None
            assert message.content[0].text == "All done: both files are there."
            first, second = bench.log.records
            said = first.response["choices"][0]["message"]
            assert [m["role"] for m in second.request["messages"]] == [
                "user",
                "assistant",
                "tool",
                "tool",
            ]
            called = second.request["messages"][1]
            assert called["tool_calls"] == said["tool_calls"], "as the model wrote them"
            assert called["content"] == said["content"]


class SlowStarter(StubEngine):
    """Its first token comes after a pause, and the pause between two is as long."""

    async def stream(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        async for frame in super().stream(body):
            await asyncio.sleep(0.25)
            yield frame


async def test_pings_show_a_silent_stream_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "SILENCE_S", 0.1)
    body = {"model": "reef", "max_tokens": 3, "messages": HI, "stream": True}
    async with bench_of(stub=SlowStarter()) as bench:
        appended = bench.log.append

        async def append(*given: Any, **named: Any) -> Any:
            await asyncio.sleep(0.25)
            return await appended(*given, **named)

        monkeypatch.setattr(bench.log, "append", append)
        answer = await bench.http.post("/v1/messages", json=body)
        kinds = [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")]
        assert kinds[:2] == ["message_start", "ping"]
        spoken = [kind for kind in kinds if kind != "ping"]
        assert spoken[1:3] == ["content_block_start", "content_block_delta"]
        assert kinds[-4] == "ping", "the record is not durable yet"
        assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
        assert spoken.count("message_start") == 1
        assert 'event: ping\ndata: {"type":"ping"}\n\n' in answer.text
        async for client in client_of(bench):
            async with client.messages.stream(model="reef", max_tokens=3, messages=HI) as stream:
                final = await stream.get_final_message()
            assert final.content[0].text == "Hello there friend"
        spoken_once, with_client = bench.log.records
        assert spoken_once.response == with_client.response
        answer = await bench.http.post("/v1/responses", json={"input": "Hi", "stream": True})
        assert "ping" not in answer.text


async def test_no_ping_comes_after_an_error_or_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialects, "SILENCE_S", 0.05)
    body = {"model": "reef", "max_tokens": 3, "messages": HI, "stream": True}
    async with bench_of(silence_s=0.5) as bench:
        for scenario, last in (("silent", "error"), ("cut", "error"), ("default", "message_stop")):
            named = {"x-reef-scenario": scenario}
            answer = await bench.http.post("/v1/messages", json=body, headers=named)
            kinds = [line[7:] for line in answer.text.splitlines() if line.startswith("event: ")]
            assert kinds[-1] == last, scenario
            assert ("ping" in kinds) is (scenario == "silent")


async def test_tokens_are_counted(bench: Bench, client: anthropic.AsyncAnthropic) -> None:
    counted = await client.messages.count_tokens(model="reef", messages=HI, tools=BASH)
    assert counted.input_tokens == 7
    assert bench.log.records == []


async def test_errors_are_the_clients_own(bench: Bench, client: anthropic.AsyncAnthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="messages"):
        await client.messages.create(model="reef", max_tokens=3, messages=[])
    with pytest.raises(anthropic.NotFoundError):
        await client.messages.create(model="claude-none", max_tokens=3, messages=HI)
    async for limited in client_of(bench, x_reef_scenario="limited"):
        with pytest.raises(anthropic.RateLimitError) as found:
            await limited.messages.create(model="reef", max_tokens=3, messages=HI)
        assert found.value.response.headers["retry-after"] == "7"
    async for cut in client_of(bench, x_reef_scenario="misfire"):
        with pytest.raises(anthropic.APIStatusError):
            async with cut.messages.stream(model="reef", max_tokens=3, messages=HI) as stream:
                await stream.get_final_message()


async def test_a_picture_in_a_tools_result_is_shown_beside_it(bench: Bench) -> None:
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "iVBO"},
    }
    result = {
        "type": "tool_result",
        "tool_use_id": "t",
        "content": [{"type": "text", "text": "shot"}, picture],
    }
    use = {"type": "tool_use", "id": "t", "name": "look", "input": {}}
    turns = [*HI, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
    body = {"model": "reef", "max_tokens": 3, "messages": turns}
    assert (await bench.http.post("/v1/messages", json=body)).status_code == 200
    *_, told, shown = bench.engine.requests[-1]["messages"]
    assert (told["role"], told["content"]) == ("tool", "shot")
    assert shown == {
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBO"}}],
    }
    assert json.dumps(bench.log.records[-1].request["messages"])
