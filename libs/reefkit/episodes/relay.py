"""The only server that an agent on trial reaches: it passes model requests on to Reef."""

# agent --its own secret--> relay --Reef's token, scenario, release, no record--> gateway
#
# The agent never has Reef's token. What it sends under `x-reef-` is dropped, so that it can neither
# be recorded, nor be somebody's session, nor ask another release. A report is refused.

import asyncio
import secrets
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from reefcommon.errors import said

_MAX_BODY_BYTES = 32 * 1024 * 1024
_AT_ONCE = 8  # an agent and its helpers; the bodies of more would fill the host's memory
_CUT_OFF_WITHIN_S = 5.0
_CHAT = "/v1/chat/completions"
_ASKED = frozenset(
    {_CHAT, "/v1/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"}
)
_DROPPED = frozenset(
    {"authorization", "x-api-key", "host", "connection", "content-length", "transfer-encoding"}
    | {"accept-encoding", "content-encoding", "keep-alive", "proxy-authorization", "cookie"}
)


@dataclass(frozen=True, slots=True)
class Upstream:
    """The server that answers. `model`: in place of the agent's, if it is not empty."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    model: str = ""
    priority: int = 0


@dataclass(slots=True)
class Relay:
    """The requests of an episode. `refused`: the last reason for which there was no answer.

    `away`: since the last answer the model was too busy, broken or not reached.
    """

    upstream: Upstream
    secret: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    answered: int = 0
    refused: str = ""
    away: bool = False
    client: aiohttp.ClientSession | None = None
    turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    open: set[asyncio.Task[Any]] = field(default_factory=set)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        given = request.headers.get("authorization", "").removeprefix("Bearer ").strip()
        given = given or request.headers.get("x-api-key", "")
        if not secrets.compare_digest(given.encode(), self.secret.encode()):
            return _refusal(401, "this is not the token of the episode")
        path, method = request.path, request.method
        if (method, path in _ASKED) != ("POST", True) and (method, path) != ("GET", "/v1/models"):
            return _refusal(403, f"an agent on trial may not ask {method} {path}")
        task = asyncio.current_task()
        assert task is not None
        self.open.add(task)
        try:
            async with self.turns:
                return await self._answer(request)
        finally:
            self.open.discard(task)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        try:
            return await self._pass_on(request, self._changed(request.path, body))
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            self.refused = f"{self.upstream.url} does not answer: {said(error)}"[:300]
            self.away = True
            return _refusal(502, self.refused)

    async def _pass_on(self, request: web.Request, body: bytes) -> web.StreamResponse:
        assert self.client is not None
        names = request.headers.items()
        kept = {name: value for name, value in names if _passes(name.lower())}
        headers = {**kept, **self.upstream.headers}
        url = self.upstream.url.rstrip("/") + request.path
        async with self.client.request(
            request.method, url, data=body or None, headers=headers, params=request.query
        ) as answer:
            kind = {"content-type": answer.headers.get("content-type", "application/json")}
            if answer.status >= 400:
                said = await answer.read()
                self.refused = f"{answer.status}: {said[:300].decode('utf-8', 'replace')}"
                self.away = answer.status == 429 or answer.status >= 500
                return web.Response(status=answer.status, body=said, headers=kind)
            sent = web.StreamResponse(status=answer.status, headers=kind)
            await sent.prepare(request)
            async for chunk in answer.content.iter_any():
                await sent.write(chunk)
            await sent.write_eof()
            if request.method == "POST":
                self.answered, self.away = self.answered + 1, False
            return sent

    def _changed(self, path: str, body: bytes) -> bytes:
        if not body or not (self.upstream.model or self.upstream.priority):
            return body
        try:
            asked = orjson.loads(body)
        except orjson.JSONDecodeError:  # the gateway says so
            return body
        if not isinstance(asked, dict):
            return body
        if self.upstream.model:
            asked["model"] = self.upstream.model
        if self.upstream.priority and path == _CHAT:
            asked["priority"] = self.upstream.priority
        return orjson.dumps(asked)


@asynccontextmanager
async def running(relay: Relay, listener: socket.socket) -> AsyncIterator[Relay]:
    """Answer on a listening socket. On leaving, requests under way are cut off."""
    listener.setblocking(False)
    app = web.Application(client_max_size=_MAX_BODY_BYTES)
    app.router.add_route("*", "/{path:.*}", relay.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True)
    # The gateway is on this machine or network: no proxy of the environment.
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    async with aiohttp.ClientSession(timeout=timeout, trust_env=False) as client:
        relay.client = client
        await runner.setup()
        try:
            await web.SockSite(runner, listener).start()
            yield relay
        finally:
            await runner.cleanup()
            # Cut off, and not ended: each gives its connection back first.
            if relay.open:
                await asyncio.wait(relay.open, timeout=_CUT_OFF_WITHIN_S)
            await asyncio.sleep(0)  # a transport closes in the loop's next round


def _passes(name: str) -> bool:
    return name not in _DROPPED and not name.startswith(("x-reef-", "x-forwarded-"))


def _refusal(status: int, words: str) -> web.Response:
    body = {"error": {"message": words, "type": "invalid_request_error", "code": "episode"}}
    return web.json_response(body, status=status)
