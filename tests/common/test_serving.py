"""What a serving node answers is not believed to be what it should be."""

from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from reefcommon.errors import Transient
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
                match=rf"{node.url} answered /v1/\w+(/completions)? with what cannot be read",
            ):
                await call
        said.clear()
        assert await node.models() == {"reef": None}
        assert [one.text for one in await node.chat("reef", [])] == ["Hi"]
