"""LangChain and LiteLLM, unchanged, with a model that calls two tools at once: one session in each format."""

import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.experience.test_turns import Rig

from .conftest import Bench, bench_of
from .scripted_engine import ScriptedEngine, agent_script

DONE = "All done: both files are there."
BASH: Any = {
    "type": "function",
    "function": {
        "name": "Bash",
        "description": "run a command",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    async with bench_of(stub=ScriptedEngine(agent_script)) as made:
        yield made


async def one_session(bench: Bench, dialect: str, *, parts: int = 1) -> None:
    first, second = records = bench.log.records
    assert [record.dialect for record in records] == [dialect, dialect]
    said = first.response["choices"][0]["message"]
    called = next(m for m in second.request["messages"] if m["role"] == "assistant")
    texts = [call["function"]["arguments"] for call in said["tool_calls"]]
    assert [json.loads(c["function"]["arguments"]) for c in called["tool_calls"]] == [
        json.loads(t) for t in texts
    ]
    rig = Rig()
    await rig.take(first, second.model_copy(update={"session_end": True}))
    assert len({part.session_id for part in rig.sessions}) == 1
    assert {name for part in rig.sessions for name in part.record_ids} == {
        r.event_id for r in records
    }
    assert len(rig.sessions) == parts


@pytest.mark.parametrize("form", ["chat", "responses", "messages"])
async def test_langchain(bench: Bench, form: str) -> None:
    from langchain_anthropic import ChatAnthropic
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_openai import ChatOpenAI

    common: Any = {"model": "reef", "api_key": "k", "max_retries": 0}
    model: Any = (
        ChatAnthropic(base_url=bench.url, max_tokens=99, **common)
        if form == "messages"
        else ChatOpenAI(base_url=f"{bench.url}/v1", use_responses_api=form == "responses", **common)
    )
    bound = model.bind_tools([BASH])
    turns: list[Any] = [HumanMessage("Write two files.")]
    answer = await bound.ainvoke(turns)
    assert len(answer.tool_calls) == 2
    turns += [answer, *(ToolMessage("done", tool_call_id=call["id"]) for call in answer.tool_calls)]
    pieces = [piece async for piece in bound.astream(turns)]
    assert "".join(piece.text for piece in pieces) == DONE
    # In a chat LangChain spells the arguments of a call anew: the session has other tokens then.
    await one_session(bench, "" if form == "chat" else form, parts=2 if form == "chat" else 1)


@pytest.fixture(scope="module")
def litellm() -> Any:
    # Without it LiteLLM fetches a list of prices at its import.
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    import litellm as module

    module.suppress_debug_info = True
    return module


@pytest.mark.parametrize("form", ["chat", "messages"])
async def test_litellm(bench: Bench, litellm: Any, form: str) -> None:
    named = "anthropic/reef" if form == "messages" else "openai/reef"
    place = bench.url if form == "messages" else f"{bench.url}/v1"
    asked: Any = {
        "model": named,
        "api_base": place,
        "api_key": "k",
        "max_tokens": 99,
        "tools": [BASH],
        "num_retries": 0,
    }
    turns: list[Any] = [{"role": "user", "content": "Write two files."}]
    answer = await litellm.acompletion(messages=turns, **asked)
    message = answer.choices[0].message
    assert len(message.tool_calls) == 2
    turns += [
        message.model_dump(),
        *(
            {"role": "tool", "tool_call_id": call.id, "content": "done"}
            for call in message.tool_calls
        ),
    ]
    text = ""
    async for chunk in await litellm.acompletion(messages=turns, stream=True, **asked):
        text += chunk.choices[0].delta.content or ""
    assert text == DONE
    await one_session(bench, "" if form == "chat" else form)


async def test_litellm_responses(bench: Bench, litellm: Any) -> None:
    asked: Any = {"model": "openai/reef", "api_base": f"{bench.url}/v1", "api_key": "k"}
    tool = {"type": "function", **BASH["function"]}
    items: list[Any] = [{"role": "user", "content": "Write two files."}]
    answer = await litellm.aresponses(input=items, tools=[tool], **asked)
    calls = [item for item in answer.output if item.type == "function_call"]
    assert len(calls) == 2
    items += [item.model_dump(exclude_none=True) for item in answer.output]
    items += [
        {"type": "function_call_output", "call_id": call.call_id, "output": "done"}
        for call in calls
    ]
    answer = await litellm.aresponses(input=items, tools=[tool], **asked)
    assert answer.output[0].content[0].text == DONE
    await one_session(bench, "responses")


async def test_errors_of_a_provider_are_litellms_own(bench: Bench, litellm: Any) -> None:
    for named, place in (("openai/none", f"{bench.url}/v1"), ("anthropic/none", bench.url)):
        with pytest.raises(litellm.NotFoundError):
            await litellm.acompletion(
                model=named, api_base=place, api_key="k", max_tokens=3, num_retries=0,
                messages=[{"role": "user", "content": "Hi"}],
            )  # fmt: skip
