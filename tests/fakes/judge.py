"""A judge: an OpenAI endpoint that counts its calls, and can be away, slow, or talk rubbish."""

import asyncio
import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web


@dataclass
class Judge:
    """`keys`: how often each Idempotency-Key came. `mood`: how the next requests are answered.

    `refused`: parameters that this model does not know, as OpenAI says it.
    """

    mood: str = "well"
    text: str = "better"
    keys: Counter[str] = field(default_factory=Counter)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    moods: list[str] = field(default_factory=list)
    refused: tuple[str, ...] = ()
    url: str = ""
    at_once: int = 0
    most_at_once: int = 0
    delay_s: float = 0.0
    _runner: web.AppRunner | None = None
    _port: int = 0

    async def __aenter__(self) -> "Judge":
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Listen; the second time on the same port."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._score)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self._port = self._runner.addresses[0][1]
        self.url = f"http://127.0.0.1:{self._port}/v1"

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    @property
    def calls(self) -> int:
        return len(self.bodies)

    async def _chat(self, request: web.Request) -> web.Response:
        body = await self._taken(request)
        for name in set(self.refused) & body.keys():
            error = {"message": "no", "param": name, "code": "unsupported_parameter"}
            return web.json_response({"error": error}, status=400)
        message = {"role": "assistant", "content": self.text}
        choices = [{"message": message, "finish_reason": "stop"}] * body.get("n", 1)
        return await self._answer({"choices": choices})

    async def _score(self, request: web.Request) -> web.Response:
        body = await self._taken(request)
        rows = [None, *({str(token): {"logprob": -0.5}} for token in body["prompt"][1:])]
        return await self._answer({"choices": [{"text": "", "prompt_logprobs": rows}]})

    async def _taken(self, request: web.Request) -> dict[str, Any]:
        body: dict[str, Any] = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.keys[request.headers.get("idempotency-key", "")] += 1
        return body

    async def _answer(self, body: dict[str, Any]) -> web.Response:
        mood = self.moods.pop(0) if self.moods else self.mood
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(60.0 if mood == "slow" else self.delay_s)
        finally:
            self.at_once -= 1
        if mood.isdigit():
            return web.json_response({"error": {"message": "no"}}, status=int(mood))
        if mood == "rubbish":
            return web.Response(text="<html>soon back</html>")
        if mood == "no choices":
            return web.json_response({"choices": []})
        usage = {"prompt_tokens": 10, "completion_tokens": 2}
        return web.Response(
            text=json.dumps({**body, "usage": usage}), content_type="application/json"
        )
