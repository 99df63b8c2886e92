"""The two other servers of the gateway benches, each a process: `python -m tests.bench.peers canned PORT`, `… bare PORT UPSTREAM`.

canned  a serving node that answers at once with canned bytes, token ids and log-probabilities included, so that it never is what is measured
bare    the floor: raw ASGI and aiohttp, nothing read, nothing recorded
"""

import asyncio
import sys
from typing import Any

import orjson
import uvloop

from tests.bench.idempotent import door

TOKENS = 50


def row(position: int) -> dict[str, Any]:
    """The log-probability of one token, as an engine states it."""
    return {
        "token": "word ",
        "logprob": -0.25 - position / 1000,
        "bytes": [119, 111, 114, 100, 32],
        "top_logprobs": [],
    }


def unary_answer() -> bytes:
    """A whole answer of 50 tokens."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "word " * TOKENS},
        "logprobs": {"content": [row(p) for p in range(TOKENS)]},
        "finish_reason": "stop",
        "token_ids": list(range(1000, 1000 + TOKENS)),
    }
    usage = {"prompt_tokens": 80, "completion_tokens": TOKENS, "total_tokens": 80 + TOKENS}
    head = {
        "id": "chatcmpl-bench",
        "object": "chat.completion",
        "created": 1700000000,
        "model": "reef",
    }
    return orjson.dumps(
        {**head, "choices": [choice], "usage": usage, "prompt_token_ids": list(range(80))}
    )


def stream_answer() -> list[bytes]:
    """51 events and the terminator."""
    head = {
        "id": "chatcmpl-bench",
        "object": "chat.completion.chunk",
        "created": 1700000000,
        "model": "reef",
    }
    frames = []
    for p in range(TOKENS):
        choice = {
            "index": 0,
            "delta": {"content": "word "},
            "logprobs": {"content": [row(p)]},
            "finish_reason": None,
            "token_ids": [1000 + p],
        }
        frames.append({**head, "choices": [choice]})
    frames[0]["prompt_token_ids"] = list(range(80))
    frames[-1]["choices"][0]["finish_reason"] = "stop"
    frames.append(
        {**head, "choices": [], "usage": {"prompt_tokens": 80, "completion_tokens": TOKENS}}
    )
    return [b"data: " + orjson.dumps(frame) + b"\n\n" for frame in frames] + [b"data: [DONE]\n\n"]


class Canned(asyncio.Protocol):
    """A serving node that costs as little as possible, so that it never is what is measured."""

    unary = b""
    stream: tuple[bytes, ...] = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while True:
            head, found, rest = self.buffer.partition(b"\r\n\r\n")
            if not found:
                return
            length = next(
                (
                    int(line[15:])
                    for line in head.lower().split(b"\r\n")
                    if line.startswith(b"content-length:")
                ),
                0,
            )
            if len(rest) < length:
                return
            body, self.buffer = rest[:length], rest[length:]
            self.answer(head, body)

    def answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            models = b'{"object":"list","data":[{"id":"reef","object":"model","root":"reef"}]}'
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (len(models), models)
            )
        elif b'"stream":true' in body:
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            for frame in (
                self.stream
            ):  # one chunk an event; a real node would send them apart, which costs a wake-up each
                self.transport.write(b"%x\r\n%b\r\n" % (len(frame), frame))
            self.transport.write(b"0\r\n\r\n")
        else:
            self.transport.write(self.unary)


async def canned(port: int) -> None:
    """Run the serving node."""
    answer = unary_answer()
    Canned.unary = (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
        % (len(answer), answer)
    )
    Canned.stream = tuple(stream_answer())
    server = await asyncio.get_running_loop().create_server(Canned, "127.0.0.1", port)
    await server.serve_forever()


def passthrough(port: int, upstream: str) -> None:
    """Run the floor."""
    import aiohttp
    import uvicorn

    session: aiohttp.ClientSession | None = None

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal session
        if scope["type"] != "http":
            return
        session = session or aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        body = (await receive())["body"]
        async with session.post(
            upstream + scope["path"], data=body, headers={"content-type": "application/json"}
        ) as answer:
            kind = [(b"content-type", answer.headers["content-type"].encode())]
            if answer.content_type == "text/event-stream":
                await send({"type": "http.response.start", "status": 200, "headers": kind})
                async for chunk in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            data = await answer.read()
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [*kind, (b"content-length", b"%d" % len(data))],
            }
        )
        await send({"type": "http.response.body", "body": data, "more_body": False})

    uvicorn.run(
        app,
        host="127.0.0.1",
        port=port,
        log_level="error",
        access_log=False,
        loop="uvloop",
        lifespan="off",
    )


if __name__ == "__main__":
    if sys.argv[1] == "canned":
        uvloop.run(canned(int(sys.argv[2])))
    elif sys.argv[1] == "door":
        uvloop.run(door(int(sys.argv[2]), sys.argv[3]))
    else:
        passthrough(int(sys.argv[2]), sys.argv[3])
