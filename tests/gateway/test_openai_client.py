"""The real openai client against the gateway: it gets what it would get from the engine, plus the receipt."""

from typing import Any

import openai
import orjson
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .conftest import CHAT, Bench, bench_of
from .stub_engine import StubEngine


async def test_a_chat_completion_is_answered_and_recorded(bench: Bench) -> None:
    """The answer is the engine's without what Reef asked for; the record has token ids, log-probabilities and the release."""
    raw = await bench.openai(
        x_reef_tag_session="s-1", x_reef_tag_client="tests"
    ).chat.completions.with_raw_response.create(
        model="reef", messages=CHAT, temperature=0.5, extra_body={"vendor_field": {"deep": [1]}}
    )
    answer = raw.parse()
    assert answer.choices[0].message.content == "Hello there friend"
    assert answer.model == "reef"
    assert answer.choices[0].logprobs is None
    assert not {"token_ids", "prompt_token_ids", "weight_versions", "weight_version"} & set(
        raw.text.split('"')
    )
    (record,) = bench.log.records
    assert raw.headers["x-reef-agent-record-id"] == record.event_id
    assert raw.headers["x-reef-release-id"] == record.release_id == "rel-default-0"
    assert raw.headers["x-reef-session-id"] == record.session_tag == "s-1"
    assert record.tags == {"session": "s-1", "client": "tests"}
    assert (record.outcome, record.status, record.stream, record.load_id) == (
        "ok",
        200,
        False,
        "inc-1:0",
    )
    assert record.prompt_token_ids == (1, 15043, 2)
    assert record.completions[0].token_ids == (10, 11, 12)
    assert record.completions[0].logprobs == pytest.approx((-0.1, -0.2, -0.3))
    assert record.completions[0].weight_versions[0].version == "v1"
    assert record.usage is not None
    assert record.usage.completion_tokens == 3
    assert record.request is not None
    assert record.request["model"] == "reef"
    assert "return_token_ids" not in record.request
    assert record.response == answer.model_dump(exclude_unset=True)
    asked = bench.engine.requests[0]
    assert asked["vendor_field"] == {"deep": [1]}
    assert (asked["model"], asked["logprobs"], asked["return_token_ids"], asked["temperature"]) == (
        "reef",
        True,
        True,
        0.5,
    )


async def test_a_stream_is_what_the_client_asked_for(bench: Bench) -> None:
    """No chunk and no field is added; the receipt is in the header; the record equals the unary one."""
    client = bench.openai()
    async with client.chat.completions.with_streaming_response.create(
        model="reef", messages=CHAT, stream=True
    ) as response:
        receipt = response.headers["x-reef-agent-record-id"]
        lines = [line async for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    assert receipt not in "".join(lines)
    assert not any(
        "usage" in line or "token_ids" in line or "weight_version" in line for line in lines
    )
    text = ""
    async for chunk in await client.chat.completions.create(
        model="reef", messages=CHAT, stream=True
    ):
        assert chunk.model == "reef"
        assert chunk.system_fingerprint == "rel-default-0"
        text += chunk.choices[0].delta.content or ""
    assert text == "Hello there friend"
    await client.chat.completions.create(model="reef", messages=CHAT)
    streamed, _, unary = bench.log.records
    assert streamed.event_id == receipt
    assert streamed.stream
    assert streamed.first_token_ms is not None
    assert streamed.response == unary.response
    assert streamed.prompt_token_ids == unary.prompt_token_ids
    assert streamed.completions == unary.completions
    assert streamed.usage == unary.usage


async def test_streams_with_usage_are_each_recorded(bench: Bench) -> None:
    """Three streams with include_usage give three records, each with usage."""
    client = bench.openai()
    for _ in range(3):
        usage = None
        stream = await client.chat.completions.create(
            model="reef", messages=CHAT, stream=True, stream_options={"include_usage": True}
        )
        async for chunk in stream:
            usage = chunk.usage or usage
        assert usage is not None
        assert usage.completion_tokens == 3
    assert len({record.event_id for record in bench.log.records}) == 3
    assert all(
        record.usage is not None
        and record.usage.completion_tokens == 3
        and not record.usage.estimated
        for record in bench.log.records
    )


async def test_parallel_tool_calls(bench: Bench) -> None:
    """G5: deltas keep their index, the assembled record equals the unary one, a call without arguments has `{}`."""
    client = bench.openai(x_reef_scenario="tools")
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
        for name in ("look_up", "now")
    ]
    indexes = []
    async for chunk in await client.chat.completions.create(
        model="reef", messages=CHAT, tools=tools, stream=True
    ):
        for choice in chunk.choices:
            indexes += [call.index for call in choice.delta.tool_calls or []]
    answer = await client.chat.completions.create(model="reef", messages=CHAT, tools=tools)
    assert indexes == [0, 1, 0, 1, 0]
    streamed, unary = bench.log.records
    assert streamed.response == unary.response
    calls = answer.choices[0].message.tool_calls or []
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("look_up", '{"city": "Paris"}'),
        ("now", "{}"),
    ]
    assert streamed.completions[0].finish_reason == "tool_calls"
    assert len(streamed.completions[0].token_ids) == len(streamed.completions[0].logprobs) == 5


class BareStub(StubEngine):
    """Unary, it gives a call without arguments none at all, or an empty text, or null, as some servers do."""

    def __init__(self, bare: dict[str, Any]) -> None:
        super().__init__()
        self.bare = bare

    async def chat(self, request: Request) -> Response:
        answer = await super().chat(request)
        if not isinstance(answer, JSONResponse):
            return answer
        body = orjson.loads(answer.body)
        call = body["choices"][0]["message"]["tool_calls"][1]
        call["function"] = {"name": call["function"]["name"], **self.bare}
        return JSONResponse(body)


@pytest.mark.parametrize("bare", [{}, {"arguments": ""}, {"arguments": None}])
async def test_a_unary_call_without_arguments(bare: dict[str, Any]) -> None:
    """G5: both records have `{}`; the client's unary answer stays as the engine gave it."""
    async with bench_of(stub=BareStub(bare)) as bench:
        await bench.chat("tools", stream=True)
        answer = await bench.chat("tools")
        assert answer.json()["choices"][0]["message"]["tool_calls"][1]["function"] == {
            "name": "now",
            **bare,
        }
        streamed, unary = bench.log.records
        assert streamed.response == unary.response
        assert unary.response is not None
        assert unary.response["choices"][0]["message"]["tool_calls"][1]["function"] == {
            "name": "now",
            "arguments": "{}",
        }


async def test_several_choices_and_log_probabilities(bench: Bench) -> None:
    """`n` and `logprobs` that the client asked for stay in its answer, streamed and not."""
    client = bench.openai()
    answer = await client.chat.completions.create(model="reef", messages=CHAT, n=2, logprobs=True)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[1].logprobs is not None
    assert [row.logprob for row in answer.choices[1].logprobs.content or []] == pytest.approx(
        [-0.1, -0.2, -0.3]
    )
    rows = 0
    async for chunk in await client.chat.completions.create(
        model="reef", messages=CHAT, n=2, logprobs=True, stream=True
    ):
        rows += sum(
            len(choice.logprobs.content or []) for choice in chunk.choices if choice.logprobs
        )
    assert rows == 6
    unary, streamed = bench.log.records
    assert [c.token_ids for c in streamed.completions] == [(10, 11, 12), (10, 11, 12)]
    assert streamed.response == unary.response


async def test_text_completions(bench: Bench) -> None:
    """`/v1/completions`: prompt ids come in the choice, log-probabilities as a flat list."""
    answer = await bench.openai().completions.create(model="reef", prompt="Hi")
    assert answer.choices[0].text == "Hello there friend"
    assert answer.choices[0].logprobs is None
    (record,) = bench.log.records
    assert record.api == "completions"
    assert record.prompt_token_ids == (1, 15043, 2)
    assert record.completions[0].logprobs == (-0.1, -0.2, -0.3)


async def test_models(bench: Bench) -> None:
    """The served name is listed, and can be asked for."""
    client = bench.openai()
    assert [model.id for model in (await client.models.list()).data] == ["reef"]
    assert (await client.models.retrieve("reef")).owned_by == "reef"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await client.models.retrieve("gpt-none")


async def test_errors_are_the_clients_own(bench: Bench) -> None:
    """The client raises its own classes, with our words, code and parameter."""
    with pytest.raises(openai.BadRequestError) as bad:
        await bench.openai().chat.completions.create(model="reef", messages=[])
    assert bad.value.param == "messages"
    with pytest.raises(openai.NotFoundError) as missing:
        await bench.openai(x_reef_scenario="nowhere").chat.completions.create(
            model="reef", messages=CHAT
        )
    assert missing.value.code == "scenario_not_found"
    with pytest.raises(openai.RateLimitError) as limited:
        await bench.openai(x_reef_scenario="limited").chat.completions.create(
            model="reef", messages=CHAT
        )
    assert limited.value.response.headers["retry-after"] == "7"


async def test_a_provider_without_token_ids_is_recorded(bench: Bench) -> None:
    """An upstream that gives no token ids leaves the token fields empty: kept, never trained on."""
    assert (await bench.chat("provider")).status_code == 200
    (record,) = bench.log.records
    assert record.outcome == "ok"
    assert record.completions[0].token_ids == ()
    assert record.prompt_token_ids == ()
    assert record.usage is not None


async def test_capture_off(bench: Bench) -> None:
    """`x-reef-capture: false`: answered, not recorded, no receipt, and the engine is asked for nothing more."""
    answer = await bench.chat(headers={"x-reef-capture": "false"})
    assert answer.status_code == 200
    assert "x-reef-agent-record-id" not in answer.headers
    assert "logprobs" not in bench.engine.requests[0]
    streamed = await bench.chat(headers={"x-reef-capture": "false"}, stream=True)
    assert "token_ids" not in streamed.text
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert bench.log.appended == []
