"""What a serving node answers is not believed to be what it should be."""

import asyncio
import json
import math
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from reefcommon.errors import Poison, Slow, Transient, Unavailable
from reefkit.serving_http import HttpServingNode

MODELS = {"data": [{"id": "reef"}]}
CHAT = {"model": "reef", "choices": [{"message": {"content": "Hi"}}]}


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        None,
        "no",
        {"data": None, "choices": None},
        {"data": [1], "choices": [1]},
        {"data": [{}], "choices": [None]},
        {"data": [1], "choices": [{"prompt_logprobs": [None, {"2": {"logprob": None}}]}]},
        {"data": [1], "choices": [{"prompt_logprobs": [None, {"2": {"logprob": "-1"}}]}]},
    ],
)
async def test_an_answer_of_another_kind_may_be_right_the_next_time(body: Any) -> None:
    """200 with a proxy's page, or half of an answer: a failure to be tried again, with the node and the route in its words."""
    said = [body]

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(
            said[0] if said else MODELS if request.path == "/v1/models" else CHAT
        )

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        node = HttpServingNode(str(server.make_url("")), session)
        for call in (node.models(), node.chat("reef", []), node.prompt_logprobs("reef", [1, 2])):
            with pytest.raises(
                Transient,
                match=rf"{node.url} answered /v1/\w+(/completions)? with a body that cannot be read",
            ):
                await call
        said.clear()
        assert await node.models() == {"reef": None}
        assert [one.text for one in await node.chat("reef", [])] == ["Hi"]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"model": "other"}, "other answered instead of reef"),
        ({"logprob": 0.7}, "are no log-probabilities"),
        ({"logprob": math.nan}, "cannot be read"),
        ({"tokens": 1}, "gave no prompt log-probabilities"),
    ],
)
async def test_a_node_that_lies_to_the_evaluator_is_not_believed(
    said: dict[str, Any], words: str
) -> None:
    row = {"2": {"logprob": said.get("logprob", -1.0)}}
    body = {"model": said.get("model", "reef")}
    body |= {"choices": [{"prompt_logprobs": [None, *[row] * (said.get("tokens", 2) - 1)]}]}

    async def answer(_request: web.Request) -> web.Response:
        return web.Response(body=json.dumps(body).encode())

    app = web.Application()
    app.router.add_post("/{any:.*}", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        node = HttpServingNode(str(server.make_url("")), session)
        with pytest.raises((Transient, Poison), match=words):
            await node.prompt_logprobs("reef", [1, 2])


@pytest.mark.parametrize("body", [[], None, "no", {"tensors": [1], "world_size": "two"}])
async def test_statements_on_weights_of_another_kind_are_read_again(body: Any) -> None:
    async def answer(_request: web.Request) -> web.Response:
        return web.json_response(body)

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        node = HttpServingNode(str(server.make_url("")), session)
        paused = [] if isinstance(body, dict) else [node.is_paused()]
        for call in (node.weights(), node.world_size(), *paused):
            with pytest.raises(Transient, match="with a body that cannot be read"):
                await call


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ('{"error":{"message":"The model is\\nstill loading.","code":503}}', "The model is still loading."),
        ('{"object":"error","message":"no room"}', "no room"),
        ('{"detail": "Not Found"}', '{"detail": "Not Found"}'),
        ("starting\x1b[2J\n", "starting[2J"),
        ("[1]", "[1]"),
        ("", "no words"),
    ],
)  # fmt: skip
async def test_a_refusal_is_told_in_words(body: str, words: str) -> None:
    async def refuse(_request: web.Request) -> web.Response:
        return web.Response(text=body, status=503)

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", refuse)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        node = HttpServingNode(str(server.make_url("")), session)
        with pytest.raises(Transient) as refused:
            await node.models()
    assert str(refused.value) == f"{node} answered 503 to /v1/models: {words}"


async def test_a_node_without_priorities_is_asked_without_one() -> None:
    bodies: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        bodies.append(await request.json())
        if "priority" in bodies[-1]:
            return web.json_response({"error": "Priority scheduling is not enabled"}, status=400)
        return web.json_response(CHAT)

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        node = HttpServingNode(str(server.make_url("")), session)
        for _ in range(2):
            assert (await node.chat("reef", [], priority=10))[0].text == "Hi"
    assert [body.get("priority") for body in bodies] == [10, None, None]


async def test_a_slow_node_is_not_a_node_that_is_away() -> None:
    async def answer(_request: web.Request) -> web.Response:
        await asyncio.sleep(5)
        raise AssertionError

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        node = HttpServingNode(str(server.make_url("")), session)
        with pytest.raises(Slow, match=r"within 0\.05 s"):
            await node.chat("reef", [], timeout_s=0.05)
        away = HttpServingNode("http://127.0.0.1:9", session)
        with pytest.raises(Unavailable) as caught:
            await away.chat("reef", [], timeout_s=5)
    assert not isinstance(caught.value, Slow)


async def test_an_adapter_that_vllm_cannot_hold_is_refused() -> None:
    """vLLM 0.32 answers 500 to it, as to a failure of its own, and goes on."""
    rank = "LoRA rank 32 is greater than max_lora_rank 16."
    root = "please check the stack trace above for the root cause"
    said = [f"Call to add_lora method failed: Worker failed with error '{rank}', {root}"]

    async def answer(request: web.Request) -> web.Response:
        if request.path == "/v1/models":
            return web.json_response(MODELS)
        shape = {"message": said[0], "type": "InternalServerError", "param": None, "code": 500}
        return web.json_response({"error": shape}, status=500)

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        node = HttpServingNode(str(server.make_url("")), session)
        with pytest.raises(Poison, match="LoRA rank 32 is greater than max_lora_rank 16"):
            await node.load_adapter("default@r1", "/adapters/1")
        said[0] = "EngineCore encountered an issue."
        with pytest.raises(Transient):
            await node.load_adapter("default@r1", "/adapters/1")
