"""The stub engine E: an OpenAI endpoint in vLLM's dialect whose faults are chosen by the model's name.

reef, any other name   three tokens, or as many as `max_tokens` says
slow                   a stream of 60 chunks, 40 ms apart
silent                 nothing, for ever
tools                  two parallel tool calls, the second one without arguments
cut                    a stream that ends after three chunks without its terminator
torn                   a stream whose connection breaks after three chunks
limited                429 with Retry-After
broken                 500
garbage                200 with something that is not JSON
misfire                an error event in the stream, then [DONE]
provider               no token ids, no log-probabilities
absent                 404, as for an adapter that is not loaded
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

WORDS = ["Hello", " there", " friend"]
CALLS = [("call_a", "look_up", '{"city": "Paris"}'), ("call_b", "now", "")]
PROMPT = [1, 15043, 2]


@dataclass
class StubEngine:
    """What it was asked, and when a caller left."""

    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    left_at: list[float] = field(default_factory=list)
    delay_s: float = 0.0
    models: list[str] = field(default_factory=lambda: ["reef"])

    @property
    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/completions", self.complete, methods=["POST"]),
                Route("/v1/models", self.list_models),
                Route("/tokenize", self.tokenize, methods=["POST"]),
            ]
        )

    async def list_models(self, _request: Request) -> Response:
        return JSONResponse(
            {
                "object": "list",
                "data": [{"id": name, "object": "model", "root": name} for name in self.models],
            }
        )

    async def tokenize(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        return JSONResponse({"count": 7, "max_model_len": 100, "tokens": [1] * 7})

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        shown = body.get("logprobs") is not None
        choice = {
            "index": 0,
            "text": "".join(WORDS),
            "finish_reason": "stop",
            "logprobs": {
                "tokens": WORDS,
                "token_logprobs": [-0.1, -0.2, -0.3],
                "top_logprobs": None,
                "text_offset": [0, 5, 11],
            }
            if shown
            else None,
        }
        if body.get("return_token_ids"):
            choice |= {"token_ids": [10, 11, 12], "prompt_token_ids": PROMPT}
        return JSONResponse(
            {
                "id": "cmpl-1",
                "object": "text_completion",
                "created": 1,
                "model": body["model"],
                "choices": [choice],
                "usage": usage(3),
            }
        )

    async def chat(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        model = body["model"]
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if model == "limited":
            return JSONResponse(
                {"error": {"message": "slow down", "type": "rate_limit_error", "code": "rate"}},
                429,
                {"retry-after": "7"},
            )
        if model == "broken":
            return JSONResponse(
                {"error": {"message": "boom", "type": "server_error", "code": None}}, 500
            )
        if model == "absent":
            return JSONResponse(
                {"error": {"message": f"no model {model}", "type": "NotFoundError", "code": 404}},
                404,
            )
        if model == "garbage":
            return Response(b"<html>", media_type="application/json")
        if model == "silent":
            return StreamingResponse(
                self.watched(self.silence(request)), media_type="text/event-stream"
            )
        if body.get("stream"):
            return StreamingResponse(
                self.watched(self.stream(body)), media_type="text/event-stream"
            )
        return JSONResponse(whole(body))

    async def watched(self, frames: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        try:
            async for frame in frames:
                yield frame
        except asyncio.CancelledError:
            self.left_at.append(time.monotonic())
            raise

    async def silence(self, _request: Request) -> AsyncIterator[bytes]:
        await asyncio.sleep(3600)
        yield b""

    async def stream(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        model = body["model"]
        for index in range(body.get("n") or 1):
            yield sse(chunk(body, index, {"role": "assistant", "content": ""}, first=index == 0))
        if model == "tools":
            for frame in tool_frames(body):
                yield frame
        else:
            count = 60 if model == "slow" else body.get("max_tokens") or 3
            for position in range(count):
                if model == "slow":
                    await asyncio.sleep(0.04)
                if model == "torn" and position == 2:
                    raise ConnectionResetError("torn, as asked")
                if model == "misfire" and position == 1:
                    yield sse(
                        {"error": {"message": "out of memory", "type": "server_error", "code": 500}}
                    )
                    break
                for index in range(body.get("n") or 1):
                    yield sse(chunk(body, index, {"content": WORDS[position % 3]}, token=position))
            for index in range(body.get("n") or 1):
                yield sse(chunk(body, index, {}, finish="stop"))
        if model == "cut":
            return
        if (body.get("stream_options") or {}).get("include_usage"):
            yield sse(
                {
                    **head(body),
                    "choices": [],
                    "usage": usage(5 if model == "tools" else body.get("max_tokens") or 3),
                }
            )
        yield b"data: [DONE]\n\n"


def sse(body: object) -> bytes:
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def head(body: dict[str, Any]) -> dict[str, Any]:
    shape = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": body["model"],
    }
    return shape if body["model"] == "provider" else shape | {"weight_version": "v1"}


def usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": 3, "completion_tokens": tokens, "total_tokens": 3 + tokens}


def rows(positions: list[int]) -> dict[str, Any]:
    return {
        "content": [
            {"token": WORDS[p % 3], "logprob": -0.1 * (p + 1), "bytes": None, "top_logprobs": []}
            for p in positions
        ]
    }


def chunk(
    body: dict[str, Any],
    index: int,
    delta: dict[str, Any],
    *,
    token: int | None = None,
    finish: str | None = None,
    first: bool = False,
) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": index,
        "delta": delta,
        "logprobs": None,
        "finish_reason": finish,
    }
    whole_chunk = head(body) | {"choices": [choice]}
    if body["model"] == "provider":
        return whole_chunk
    if body.get("return_token_ids"):
        if first:
            whole_chunk["prompt_token_ids"] = PROMPT
        choice["token_ids"] = [10 + token] if token is not None else []
        if finish:
            choice["weight_versions"] = [{"version": "v1", "start": 0, "end": 3}]
    if body.get("logprobs") and token is not None:
        choice["logprobs"] = rows([token])
    if (body.get("stream_options") or {}).get("include_usage"):
        whole_chunk["usage"] = None
    return whole_chunk


def tool_frames(body: dict[str, Any]) -> list[bytes]:
    deltas = []
    for index, (call_id, name, _arguments) in enumerate(CALLS):
        deltas.append(
            {
                "index": index,
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": ""},
            }
        )
    # The pieces of both calls come in turns; ids are repeated as null, as some servers do.
    deltas += [
        {"index": 0, "id": None, "function": {"name": None, "arguments": '{"city": '}},
        {"index": 1, "function": {"arguments": ""}},
        {"index": 0, "function": {"arguments": '"Paris"}'}},
    ]
    frames = [
        sse(chunk(body, 0, {"tool_calls": [delta]}, token=position))
        for position, delta in enumerate(deltas)
    ]
    return [*frames, sse(chunk(body, 0, {}, finish="tool_calls"))]


def whole(body: dict[str, Any]) -> dict[str, Any]:
    model = body["model"]
    tokens = body.get("max_tokens") or 3
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(WORDS[p % 3] for p in range(tokens)),
    }
    reason = "stop"
    if model == "tools":
        message = {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {
                    "id": call_id,
                    "type": "function",
                    "function": {"name": name, "arguments": arguments or "{}"},
                }
                for call_id, name, arguments in CALLS
            ],
        }
        reason, tokens = "tool_calls", 5
    choices = []
    for index in range(body.get("n") or 1):
        choice: dict[str, Any] = {
            "index": index,
            "message": dict(message),
            "logprobs": None,
            "finish_reason": reason,
        }
        if model != "provider":
            if body.get("return_token_ids"):
                choice["token_ids"] = [10 + p for p in range(tokens)]
                choice["weight_versions"] = [{"version": "v1", "start": 0, "end": 3}]
            if body.get("logprobs"):
                choice["logprobs"] = rows(list(range(tokens)))
        choices.append(choice)
    answer = {**head(body), "object": "chat.completion", "choices": choices, "usage": usage(tokens)}
    if body.get("return_token_ids") and model != "provider":
        answer["prompt_token_ids"] = PROMPT
    return answer
