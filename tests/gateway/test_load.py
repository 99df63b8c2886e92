"""Many at once: clients that leave together, bodies that pile up, a log without room."""

import asyncio
import contextlib
import time

import httpx
import psutil

from .conftest import bench_of
from .stub_engine import StubEngine
from .test_faults import in_flight


async def test_30_large_streams_dropped_at_once() -> None:
    """G4: 30 streams of 5 MiB are under way and dropped at once; /healthz stays under 200 ms, and nothing is left in flight."""
    async with bench_of(stub=WideStub()) as bench:
        address = bench.url.removeprefix("http://").split(":")
        body = b'{"messages": [{"role": "user", "content": "go"}], "stream": true}'
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        slowest = 0.0

        async def look() -> None:
            nonlocal slowest
            while True:
                started = time.perf_counter()
                assert (await bench.http.get("/healthz")).status_code == 200
                slowest = max(slowest, time.perf_counter() - started)
                await asyncio.sleep(0.01)

        pipes = [await asyncio.open_connection(address[0], int(address[1])) for _ in range(30)]
        for _, writer in pipes:
            writer.write(head + body)
        for reader, _ in pipes:
            await reader.readuntil(b"xxxx")
        looking = asyncio.create_task(look())
        await asyncio.sleep(0.2)
        for _, writer in pipes:
            writer.transport.abort()
        for _ in range(500):
            if not in_flight():
                break
            await asyncio.sleep(0.02)
        await asyncio.sleep(0.2)
        looking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looking
        assert in_flight() == 0
        assert slowest < 0.2
        assert {record.outcome for record in bench.log.records} <= {"aborted"}


class WideStub(StubEngine):
    """A stream of 5 MiB in frames of 64 KiB."""

    async def stream(self, body):
        model = body["model"]
        for _ in range(80):
            yield b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"' + model.encode()
            yield b'","choices":[{"index":0,"delta":{"content":"' + b"x" * 65536 + b'"},"finish_reason":null}]}\n\n'
            await asyncio.sleep(0)
        yield b"data: [DONE]\n\n"


async def test_bodies_pile_up_on_a_slow_engine() -> None:
    """G6: 80 bodies of 1 MiB, a budget of 16: those past it get 503 with Retry-After before the engine is asked; all others are answered."""
    async with bench_of(stub=StubEngine(delay_s=2), connect_s=30, silence_s=30, memory_budget_bytes=16 * 1024 * 1024) as bench:
        before = psutil.Process().memory_info().rss
        body = b'{"messages": [{"role": "user", "content": "' + b"x" * (1024 * 1024) + b'"}]}'
        peak = 0

        async def look() -> None:
            nonlocal peak
            while True:
                peak = max(peak, bench.gateway.edge.held_bytes)
                await asyncio.sleep(0.01)

        looking = asyncio.create_task(look())
        limits = httpx.Limits(max_connections=100)
        async with httpx.AsyncClient(base_url=bench.url, timeout=60, limits=limits) as many:
            answers = await asyncio.gather(*(many.post("/v1/chat/completions", content=body) for _ in range(80)))
        looking.cancel()
        statuses = [answer.status_code for answer in answers]
        assert set(statuses) == {200, 503}
        assert 12 <= statuses.count(200) <= 40
        assert all(answer.headers["retry-after"] for answer in answers if answer.status_code == 503)
        assert len(bench.engine.requests) == statuses.count(200)
        assert len(bench.log.records) == statuses.count(200)
        assert peak <= 18 * 1024 * 1024
        assert bench.gateway.edge.held_bytes == 0
        assert psutil.Process().memory_info().rss - before < 600 * 1024 * 1024
