"""A proxy between everybody and the engine that can be told to be slow or broken. What it does
is what a bad network does.
"""

import asyncio
from collections.abc import Callable

import aiohttp
from aiohttp import web

from reefstack.ports import choose

DELAY_S = 1.5
HOP = frozenset({"connection", "content-length", "host", "keep-alive", "transfer-encoding"})


class Upstream:
    """`engine` gives the engine's base URL, once there is one. `mode`: "", or one of
    `plan.MODES`.
    """

    def __init__(self, engine: Callable[[], str]) -> None:
        self._engine = engine
        self.mode = ""
        self.url = f"http://127.0.0.1:{choose(['engine'], asked={}, last={}, prefer_defaults=False)['engine']}"

    async def __aenter__(self) -> "Upstream":
        self._http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None),
            trust_env=False,
            auto_decompress=False,
            # the node closes an idle connection after 5 s: none that it may be closing is used
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=2),
        )
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=1.0
        )
        await self._runner.setup()
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        await web.TCPSite(self._runner, host, int(port)).start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._runner.cleanup()
        await self._http.close()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        chat = request.method == "POST" and request.path.endswith("/completions")
        mode = self.mode if chat else ""
        if mode == "slow":
            await asyncio.sleep(DELAY_S)
        if mode == "error":
            return web.json_response(
                {"error": {"message": "broken on purpose", "type": "server_error", "code": None}},
                status=500,
            )
        if mode == "garbage":
            return web.Response(text="<html>", content_type="application/json")
        if mode == "refuse":
            return _cut(request)
        try:
            headers = {
                name: value for name, value in request.headers.items() if name.lower() not in HOP
            }
            async with self._http.request(
                request.method,
                self._engine() + request.path_qs,
                data=await request.read(),
                headers=headers,
            ) as answer:
                return await self._relay(request, answer, cut=mode == "cut")
        except (aiohttp.ClientError, OSError):
            return _cut(request)  # as a dead engine would

    async def _relay(
        self, request: web.Request, answer: aiohttp.ClientResponse, *, cut: bool
    ) -> web.StreamResponse:
        out = web.StreamResponse(
            status=answer.status,
            headers={k: v for k, v in answer.headers.items() if k.lower() not in HOP},
        )
        if "content-length" in answer.headers:
            out.content_length = int(answer.headers["content-length"])
        await out.prepare(request)
        async for chunk in answer.content.iter_any():
            if cut:
                await out.write(chunk[: len(chunk) // 2])
                return _cut(request)
            await out.write(chunk)
        await out.write_eof()
        return out


def _cut(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=502)
