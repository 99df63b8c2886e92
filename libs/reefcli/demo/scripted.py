"""A scripted model as an OpenAI endpoint: chats, whole and as a stream."""

import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

Reply = Callable[[Sequence[Mapping[str, Any]]], Mapping[str, Any]]
_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


@asynccontextmanager
async def serving(reply: Reply, name: str = "reef") -> AsyncIterator[str]:
    """Serve a model on a free port of loopback. Yields its base URL."""
    numbers = itertools.count(1)

    async def models(_request: web.Request) -> web.Response:
        row = {"id": name, "object": "model", "root": name, "max_model_len": 32_768}
        return web.json_response({"object": "list", "data": [row]})

    async def chat(request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        message = reply(body["messages"])
        number = next(numbers)
        about: dict[str, Any] = {
            "id": f"chatcmpl-{number}",
            "created": int(time.time()),
            "model": name,
        }
        wire, reason = _wire(message, number)
        if not body.get("stream"):
            choice = {"index": 0, "message": wire, "finish_reason": reason}
            whole = {**about, "object": "chat.completion", "choices": [choice], "usage": _USAGE}
            return web.json_response(whole)
        sent = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await sent.prepare(request)
        calls = [{"index": at, **call} for at, call in enumerate(wire.get("tool_calls", ()))]
        delta = {**wire, **({"tool_calls": calls} if calls else {})}
        parts: list[dict[str, Any]] = [
            {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
            {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
            {"choices": [], "usage": _USAGE},
        ]
        for part in parts:
            chunk = {**about, "object": "chat.completion.chunk", **part}
            await sent.write(b"data: " + orjson.dumps(chunk) + b"\n\n")
        await sent.write(b"data: [DONE]\n\n")
        return sent

    app = web.Application(client_max_size=32 * 1024 * 1024)
    app.router.add_get("/v1/models", models)
    app.router.add_post("/v1/chat/completions", chat)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()


def _wire(message: Mapping[str, Any], number: int) -> tuple[dict[str, Any], str]:
    if (call := message.get("call")) is None:
        return {"role": "assistant", "content": message["content"]}, "stop"
    name, arguments = call
    function = {"name": name, "arguments": orjson.dumps(arguments).decode()}
    row = {"id": f"call-{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [row]}, "tool_calls"
