"""Chat requests over raw connections, and what a server spends on them."""

import asyncio
import re
import time
from dataclasses import dataclass
from typing import Any

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


class Client(asyncio.Protocol):
    """One kept-alive connection that asks one request after another.

    It reads as little of an answer as shows its end: streams of asyncio cost as much as the server under test.
    """

    def __init__(self, requests: list[bytes], latencies: list[float]) -> None:
        self.left = iter(requests)
        self.latencies = latencies
        self.ended = asyncio.get_running_loop().create_future()
        self.got = b""
        self.whole = 0  # bytes of the answer; 0 before its head, -1 if it comes in chunks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.ask()

    def ask(self) -> None:
        request = next(self.left, None)
        if request is None:
            self.transport.close()
            self.end(None)
            return
        self.got, self.whole, self.started = b"", 0, time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self.got += data
        if not self.whole:
            head, found, _ = self.got.partition(b"\r\n\r\n")
            if not found:
                return
            if not head.startswith(b"HTTP/1.1 200"):
                self.end(SystemExit(f"not answered: {self.got[:500]!r}"))
                return
            length = re.search(rb"content-length: *(\d+)", head)
            self.whole = len(head) + 4 + int(length[1]) if length else -1
        if len(self.got) == self.whole or (self.whole < 0 and self.got.endswith(b"\r\n0\r\n\r\n")):
            self.latencies.append(time.perf_counter() - self.started)
            self.ask()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(SystemExit(f"the connection was closed: {exc!r}, after {self.got[:300]!r}"))

    def end(self, error: BaseException | None) -> None:
        """End once; without an error, all was answered."""
        if not self.ended.done():
            self.ended.set_result(error)


async def client(port: int, requests: list[bytes], latencies: list[float]) -> None:
    """Ask all requests on one connection."""
    loop = asyncio.get_running_loop()
    _, protocol = await loop.create_connection(
        lambda: Client(requests, latencies), "127.0.0.1", port
    )
    if error := await protocol.ended:
        raise error


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
