"""The gateway in front of the real serving node with the tiny model."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from .conftest import CHAT, Bench, bench_of

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def node_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A serving node in a thread of this process."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import uvicorn

    from reefstack.models import prepare
    from services.engine.app import build_app
    from services.engine.settings import Settings

    path: Path = prepare("tiny", tmp_path_factory.mktemp("models"))
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port = listener.getsockname()[1]
        app = build_app(Settings(model_path=path, served_model_name="reef", port=port))
        server = uvicorn.Server(
            uvicorn.Config(app, log_level="error", ws="none", timeout_graceful_shutdown=2)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive(), "the serving node did not start"
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}"
        server.should_exit = True
        thread.join(15)


@pytest.fixture
async def bench(node_url: str) -> AsyncIterator[Bench]:
    async with bench_of(real_engine=node_url, silence_s=60) as made:
        yield made


async def test_chat_is_captured_token_by_token(bench: Bench) -> None:
    """Ids and log-probabilities of equal length, spans over all of them; a stream with the same seed gives the same record."""
    client = bench.openai()
    options: dict[str, Any] = {
        "model": "reef",
        "messages": CHAT,
        "max_tokens": 8,
        "seed": 7,
        "temperature": 1.0,
    }
    answer = await client.chat.completions.create(**options)
    text = ""
    async for chunk in await client.chat.completions.create(
        **options, stream=True, stream_options={"include_usage": True}
    ):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
    assert text == answer.choices[0].message.content
    assert answer.choices[0].logprobs is None
    unary, streamed = bench.log.records
    assert unary.outcome == streamed.outcome == "ok"
    assert unary.completions == streamed.completions
    assert unary.prompt_token_ids == streamed.prompt_token_ids
    assert unary.usage == streamed.usage
    (completion,) = unary.completions
    assert 0 < len(completion.token_ids) == len(completion.logprobs) <= 8
    assert all(logprob <= 0 for logprob in completion.logprobs)
    assert [(span.start, span.end) for span in completion.weight_versions] == [
        (0, len(completion.token_ids))
    ]
    assert unary.response is not None
    assert streamed.response is not None
    assert unary.response["choices"] == streamed.response["choices"]
    assert "weight_version" not in unary.response


async def test_what_the_client_asks_for_stays(bench: Bench) -> None:
    """n, log-probabilities with alternatives, and token ids come through."""
    answer = await bench.openai().chat.completions.create(
        model="reef",
        messages=CHAT,
        max_tokens=4,
        n=2,
        logprobs=True,
        top_logprobs=2,
        extra_body={"return_token_ids": True},
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    content = answer.choices[0].logprobs.content if answer.choices[0].logprobs else None
    assert content
    assert len(content[0].top_logprobs) == 2
    assert len(answer.choices[0].token_ids) == len(content)  # type: ignore[attr-defined]
    assert len(bench.log.records[0].completions) == 2


async def test_text_completions(bench: Bench) -> None:
    """The older endpoint is captured too, streamed and not."""
    client = bench.openai()
    answer = await client.completions.create(model="reef", prompt="Hello", max_tokens=6, seed=3)
    text = "".join(
        [
            chunk.choices[0].text
            async for chunk in await client.completions.create(
                model="reef", prompt="Hello", max_tokens=6, seed=3, stream=True
            )
            if chunk.choices
        ]
    )
    assert text == answer.choices[0].text
    assert answer.choices[0].logprobs is None
    unary, streamed = bench.log.records
    assert unary.completions == streamed.completions
    assert 0 < len(unary.completions[0].token_ids) == len(unary.completions[0].logprobs) <= 6
    assert unary.prompt_token_ids == streamed.prompt_token_ids != ()


async def test_tools_are_accepted(bench: Bench) -> None:
    """A request with tools goes through the template; its stream assembles to the unary message."""
    tools: Any = [
        {
            "type": "function",
            "function": {
                "name": "f",
                "description": "d",
                "parameters": {"type": "object", "properties": {}},
            },
        }
    ]
    client = bench.openai()
    options: dict[str, Any] = {
        "model": "reef",
        "messages": CHAT,
        "max_tokens": 8,
        "seed": 5,
        "tools": tools,
    }
    await client.chat.completions.create(**options)
    async for _ in await client.chat.completions.create(**options, stream=True):
        pass
    unary, streamed = bench.log.records
    assert unary.response is not None
    assert streamed.response is not None
    assert unary.response["choices"] == streamed.response["choices"]


async def test_the_engines_refusal_is_the_clients(bench: Bench) -> None:
    """A parameter out of range: the engine's 400 with its own words, recorded as failed."""
    with pytest.raises(openai.BadRequestError) as refused:
        await bench.openai().chat.completions.create(model="reef", messages=CHAT, temperature=-1)
    assert "temperature" in str(refused.value)
    assert (bench.log.records[0].outcome, bench.log.records[0].status) == ("failed", 400)


async def test_an_adapter_that_is_not_loaded(bench: Bench) -> None:
    """The node's 404 for an adapter becomes 503 with Retry-After."""
    answer = await bench.chat("absent", max_tokens=2)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "release_not_served")


async def test_embeddings_that_the_engine_does_not_offer_are_said_to_be_missing(
    bench: Bench,
) -> None:
    """501, not 503: a client would ask for ever."""
    with pytest.raises(openai.APIStatusError) as refused:
        await bench.openai().embeddings.create(model="reef", input="hi")
    assert refused.value.status_code == 501
    assert bench.log.records == []
