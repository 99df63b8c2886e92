"""CPU time of the gateway per recorded request, beside a bare aiohttp pass-through in the same run.

    .venv/bin/python tests/bench/gateway_cpu.py [--clients 1 8 32] [--requests 3000] [--streams 600]

Four processes: a serving node that answers at once with canned bytes (token ids and log-probabilities included), the real gateway
(`python -m services.gateway`) on Tansu in memory and Valkey, a pass-through of 30 lines, and this driver. The figure is user + system
time of the server under test divided by requests: it holds on a shared machine, wall time does not. The first tenth is warm-up.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson
import psutil
import uvloop

ROOT = Path(__file__).parents[2]
BODY = orjson.dumps(
    {
        "model": "reef",
        "messages": [
            {"role": "system", "content": "You are a careful assistant. " * 8},
            {"role": "user", "content": "What is the capital of France? " * 4},
        ],
        "temperature": 0.7,
        "max_tokens": 64,
    }
)
STREAM_BODY = orjson.dumps({**orjson.loads(BODY), "stream": True})
PATH = b"/v1/chat/completions"
TOKENS = 50


def row(position: int) -> dict[str, Any]:
    """The log-probability of one token, as an engine states it."""
    return {"token": "word ", "logprob": -0.25 - position / 1000, "bytes": [119, 111, 114, 100, 32], "top_logprobs": []}


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
    head = {"id": "chatcmpl-bench", "object": "chat.completion", "created": 1700000000, "model": "reef"}
    return orjson.dumps({**head, "choices": [choice], "usage": usage, "prompt_token_ids": list(range(80))})


def stream_answer() -> list[bytes]:
    """51 events and the terminator."""
    head = {"id": "chatcmpl-bench", "object": "chat.completion.chunk", "created": 1700000000, "model": "reef"}
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
    frames.append({**head, "choices": [], "usage": {"prompt_tokens": 80, "completion_tokens": TOKENS}})
    return [b"data: " + orjson.dumps(frame) + b"\n\n" for frame in frames] + [b"data: [DONE]\n\n"]


# ------------------------------------------------------------------ the two other servers


class Canned(asyncio.Protocol):
    """A serving node that costs as little as possible, so that it never is what is measured."""

    unary = b""
    stream: list[bytes] = []  # noqa: RUF012

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.buffer = b""

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        while True:
            head, found, rest = self.buffer.partition(b"\r\n\r\n")
            if not found:
                return
            length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
            if len(rest) < length:
                return
            body, self.buffer = rest[:length], rest[length:]
            self.answer(head, body)

    def answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            models = b'{"object":"list","data":[{"id":"reef","object":"model","root":"reef"}]}'
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(models), models)
            )
        elif b'"stream":true' in body:
            self.transport.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            for frame in self.stream:  # one chunk an event; a real node would send them apart, which costs a wake-up each
                self.transport.write(b"%x\r\n%b\r\n" % (len(frame), frame))
            self.transport.write(b"0\r\n\r\n")
        else:
            self.transport.write(self.unary)


async def canned(port: int) -> None:
    """Run the serving node."""
    answer = unary_answer()
    Canned.unary = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(answer), answer)
    Canned.stream = stream_answer()
    server = await asyncio.get_running_loop().create_server(Canned, "127.0.0.1", port)
    await server.serve_forever()


def passthrough(port: int, upstream: str) -> None:
    """The floor: raw ASGI and aiohttp, nothing read, nothing recorded."""
    import aiohttp
    import uvicorn

    session: aiohttp.ClientSession | None = None

    async def app(scope: Any, receive: Any, send: Any) -> None:
        nonlocal session
        if scope["type"] != "http":
            return
        session = session or aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        body = (await receive())["body"]
        async with session.post(upstream + scope["path"], data=body, headers={"content-type": "application/json"}) as answer:
            kind = [(b"content-type", answer.headers["content-type"].encode())]
            if answer.content_type == "text/event-stream":
                await send({"type": "http.response.start", "status": 200, "headers": kind})
                async for chunk in answer.content.iter_any():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            data = await answer.read()
        await send({"type": "http.response.start", "status": 200, "headers": [*kind, (b"content-length", b"%d" % len(data))]})
        await send({"type": "http.response.body", "body": data, "more_body": False})

    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False, loop="uvloop", lifespan="off")


# ------------------------------------------------------------------ the driver


async def client(port: int, body: bytes, times: int, latencies: list[float]) -> None:
    """One kept-alive connection that asks one request after another."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = b"POST %b HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\nx-reef-tag-session: s\r\ncontent-length: %d\r\n\r\n%b"
    data = request % (PATH, len(body), body)
    for _ in range(times):
        started = time.perf_counter()
        writer.write(data)
        head = await reader.readuntil(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 200"):
            raise SystemExit(f"not answered: {head[:200]!r} {await reader.read(300)!r}")
        if b"chunked" in head.lower():
            while (size := int(await reader.readline(), 16)) or False:
                await reader.readexactly(size + 2)
            await reader.readline()
        else:
            await reader.readexactly(next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")))
        latencies.append(time.perf_counter() - started)
    writer.close()


async def measure(port: int, pid: int, body: bytes, clients: int, times: int) -> dict[str, float]:
    """CPU ms and latency ms per request."""
    await asyncio.gather(*(client(port, body, max(times // 10 // clients, 5), []) for _ in range(clients)))
    process = psutil.Process(pid)
    before, started = process.cpu_times(), time.perf_counter()
    latencies: list[float] = []
    await asyncio.gather(*(client(port, body, times // clients, latencies) for _ in range(clients)))
    wall, after = time.perf_counter() - started, process.cpu_times()
    cpu = after.user + after.system - before.user - before.system
    count = len(latencies)
    return {
        "cpu_ms": round(cpu / count * 1000, 3),
        "p50_ms": round(statistics.median(latencies) * 1000, 3),
        "p99_ms": round(sorted(latencies)[int(count * 0.99)] * 1000, 3),
        "per_s": round(count / wall),
    }


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@contextmanager
def program(*arguments: str, port: int, env: dict[str, str] | None = None) -> Iterator[int]:
    """A child process whose port answers. Gives its pid."""
    process = subprocess.Popen([sys.executable, *arguments], env=env, cwd=ROOT)
    try:
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None:
                raise SystemExit(f"{arguments} ended with {process.returncode}")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait(20)


async def prepared(kafka: str, redis_url: str) -> None:
    """Topics, and a head for `default`, as the publisher would make them."""
    from reefcommon.bus import ensure_topics
    from reefcommon.events import Release, utc_now
    from reefcommon.heads_redis import RedisReleaseHeads, connect

    await ensure_topics(kafka)
    head = Release(
        release_id="rel-bench", scenario="default", sequence=0, parent_id=None, kind="base", content_id="base", operation="creation",
        load_id="bench:0", created_at=utc_now(),
    )  # fmt: skip
    client_ = connect(redis_url)
    await RedisReleaseHeads(client_).advance(head)
    await client_.aclose()


async def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure both servers at each number of clients."""
    from reefcli.stack.embedded import Options, embedded_stack
    from reefcommon.config import parse

    config = parse("reef:\n  recipe: recipes.sao.recipe:SAORecipe\nmodel: tiny\n")
    roles = Options(only=frozenset({"kafka", "redis"}), memory_broker=True, default_ports=False, create_topics=False)
    rows = []
    with tempfile.TemporaryDirectory() as state:
        async with embedded_stack(config, Path(state), roles) as stack:
            await prepared(stack.kafka_bootstrap, stack.redis_url)
            node, bare, gateway = free_port(), free_port(), free_port()
            env = {
                **os.environ,
                "PYTHONPATH": f"{ROOT}:{ROOT / 'libs'}:{os.environ.get('PYTHONPATH', '')}",
                "REEF_KAFKA_BOOTSTRAP": stack.kafka_bootstrap,
                "REEF_REDIS_URL": stack.redis_url,
                "REEF_ENGINE_URLS": f"http://127.0.0.1:{node}",
                "REEF_STATE_DIR": state,
                "REEF_GATEWAY_PORT": str(gateway),
            }
            me = str(Path(__file__))
            with (
                program(me, "--serve-canned", str(node), port=node, env=env),
                program(me, "--serve-bare", str(bare), f"http://127.0.0.1:{node}", port=bare, env=env) as bare_pid,
                program("-m", "services.gateway", port=gateway, env=env) as gateway_pid,
            ):
                for kind, body, times in (("unary", BODY, options.requests), ("stream", STREAM_BODY, options.streams)):
                    for clients in options.clients:
                        floor = await measure(bare, bare_pid, body, clients, times)
                        ours = await measure(gateway, gateway_pid, body, clients, times)
                        rows.append({"kind": kind, "clients": clients, "bare": floor, "gateway": ours})
                        sys.stderr.write(f"{json.dumps(rows[-1])}\n")
    return rows


def main() -> None:
    """Print one line of JSON a setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--requests", type=int, default=3000)
    parser.add_argument("--streams", type=int, default=600)
    parser.add_argument("--serve-canned", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--serve-bare", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_canned:
        uvloop.run(canned(options.serve_canned))
    elif options.serve_bare:
        passthrough(int(options.serve_bare[0]), options.serve_bare[1])
    else:
        json.dump(uvloop.run(run(options)), sys.stdout, indent=1)


if __name__ == "__main__":
    main()
