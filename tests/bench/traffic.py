"""Chat requests over raw connections, and what a server spends on them."""

import asyncio
import time
from dataclasses import dataclass

import orjson

from tests.bench import harness
from tests.bench.harness import Row, cpu_s

BODY = {
    "model": "reef",
    "messages": [
        {"role": "system", "content": "You are a careful assistant. " * 8},
        {"role": "user", "content": "What is the capital of France? " * 4},
    ],
    "temperature": 0.7,
    "max_tokens": 64,
}
BODIES = {"unary": orjson.dumps(BODY), "stream": orjson.dumps({**BODY, "stream": True})}
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\nx-reef-scenario: %b\r\n"
    b"x-reef-tag-session: %b\r\nx-reef-tag-task: bench\r\ncontent-length: %d\r\n\r\n%b"
)


@dataclass(frozen=True)
class Traffic:
    """What the clients ask: exchanges of `kind` in `sessions` sessions, which lie in `scenarios` scenarios."""

    kind: str
    sessions: int = 100
    scenarios: int = 1

    def requests(self, count: int, skip: int = 0) -> list[bytes]:
        """`count` requests after the first `skip`, whole; the sessions take turns."""
        body = BODIES[self.kind]
        turns = [n % self.sessions for n in range(skip, skip + count)]
        whole = {
            n: REQUEST % (scenario_name(n % self.scenarios).encode(), b"s-%d" % n, len(body), body)
            for n in set(turns)
        }
        return [whole[n] for n in turns]


def scenario_name(number: int) -> str:
    """The names of the scenarios."""
    return "default" if number == 0 else f"bench-{number}"


async def client(port: int, requests: list[bytes], latencies: list[float]) -> None:
    """One kept-alive connection that asks one request after another."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    try:
        for request in requests:
            started = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"not answered: {head[:200]!r} {await reader.read(300)!r}")
            if b"chunked" in head:
                await reader.readuntil(b"\r\n0\r\n\r\n")
            else:
                await reader.readexactly(
                    next(
                        int(line[15:])
                        for line in head.split(b"\r\n")
                        if line.startswith(b"content-length:")
                    )
                )
            latencies.append(time.perf_counter() - started)
    finally:
        writer.close()


async def ask(port: int, requests: list[bytes], clients: int) -> list[float]:
    """All requests by so many clients at once; latencies in seconds."""
    latencies: list[float] = []
    await asyncio.gather(*(client(port, requests[n::clients], latencies) for n in range(clients)))
    return latencies


async def measure(
    port: int, pid: int, traffic: Traffic, clients: int, count: int, *, skip: int = 0
) -> Row:
    """CPU ms and latency ms per exchange."""
    return await timed(port, pid, traffic.requests(max(count, clients), skip), clients)


async def timed(port: int, pid: int, requests: list[bytes], clients: int) -> Row:
    """CPU ms and latency ms of one of these requests."""
    used, started = cpu_s(pid), time.perf_counter()
    latencies = await ask(port, requests, clients)
    wall, used = time.perf_counter() - started, cpu_s(pid) - used
    return {
        "cpu_ms": used / len(latencies) * 1000,
        "p50_ms": harness.quantile(latencies, 0.5) * 1000,
        "p99_ms": harness.quantile(latencies, 0.99) * 1000,
        "per_s": len(latencies) / wall,
    }
