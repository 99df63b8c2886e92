"""What the gateway holds while requests wait: about its budget, whatever the bodies look like."""

import asyncio
import os
import sys
from collections.abc import Callable

import httpx
import orjson
import psutil
import pytest

from services.gateway.domain.errors import ApiError
from services.gateway.domain.memory import Charge, Memory, decoded_bytes
from services.gateway.edge import allocation

from .conftest import CHAT, Bench, bench_of
from .gated_engine import Gate, gated, until

MIB = 1024 * 1024
BUDGET = 16 * MIB
CHAT_PATH, TEXT_PATH = "/v1/chat/completions", "/v1/completions"


def chat(extra: bytes, text: bytes = b"x") -> bytes:
    return b'{"messages":[{"role":"user","content":"' + text + b'"}]' + extra + b"}"


SIZE = MIB // 4
SHAPES: dict[str, tuple[str, bytes]] = {
    "text with one emoji": (CHAT_PATH, chat(b"", b"x" * SIZE + "\U0001f600".encode())),
    "token ids": (TEXT_PATH, b'{"prompt":[' + b"70000," * (SIZE // 6) + b"1]}"),
    "lists": (CHAT_PATH, chat(b',"x":[' + b"[]," * (SIZE // 3) + b"[]]")),
    "objects": (CHAT_PATH, chat(b',"x":[' + b'{"a":1},' * (SIZE // 8) + b"{}]")),
}
GATEWAY = """
import asyncio, sys
from tests.gateway.test_memory import gateway
asyncio.run(gateway(sys.argv[1]))
"""


async def gateway(engine: str) -> None:
    """A gateway that keeps no records, until its standard input ends."""

    async def append(*_: object) -> None:
        """Nothing is kept: only the gateway's own memory is looked at."""

    allocation.set_up()
    async with bench_of(
        real_engine=engine, connect_s=60, silence_s=300, memory_budget_bytes=BUDGET
    ) as bench:
        bench.log.append = append  # type: ignore[method-assign]
        sys.stdout.write(f"{bench.url}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)


async def pile_up(
    http: httpx.AsyncClient, gate: Gate, path: str, body: bytes, resident: Callable[[], int]
) -> tuple[int, list[int]]:
    """40 requests at once, none answered before all are settled. Returns the most memory meanwhile, and the statuses."""
    gate.asked, gate.opened, most = 0, asyncio.Event(), 0
    asking = [asyncio.create_task(http.post(path, content=body)) for _ in range(40)]

    def settled() -> bool:
        nonlocal most
        most = max(most, resident())
        return sum(task.done() for task in asking) + gate.asked == 40

    await until(settled)
    gate.opened.set()
    return most, [answer.status_code for answer in await asyncio.gather(*asking)]


async def test_the_budget_is_what_is_really_held() -> None:
    """G6: 40 bodies of 256 KiB before an engine that does not answer, a budget of 16 MiB: whatever their shape, less than 40 MiB are taken."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = asyncio.subprocess.PIPE
    async with gated() as (gate, engine):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", GATEWAY, engine, stdin=pipe, stdout=pipe, env=env
        )
        try:
            assert process.stdout is not None
            url = (await asyncio.wait_for(process.stdout.readline(), 60)).decode().strip()
            memory = psutil.Process(process.pid).memory_info
            async with httpx.AsyncClient(
                base_url=url, timeout=120, limits=httpx.Limits(max_connections=40)
            ) as http:
                gate.opened.set()
                assert (await http.post(CHAT_PATH, content=chat(b""))).status_code == 200
                before, taken = memory().rss, {}
                for name, (path, body) in SHAPES.items():
                    most, statuses = await pile_up(http, gate, path, body, lambda: memory().rss)
                    taken[name] = (most - before) / MIB
                    assert set(statuses) == {200, 503}, name
                    assert statuses.count(200) >= 24, name
        finally:
            process.kill()
            await process.wait()
    assert max(taken.values()) < 2.5 * BUDGET / MIB, taken


async def test_a_body_that_could_never_be_decoded() -> None:
    """413 where decoding one body alone would take more than the budget; the same bytes as a text are answered."""
    async with bench_of(memory_budget_bytes=4 * MIB) as bench:
        lists = b"[" + b"[]," * (SIZE // 3) + b"[]]"
        refused = await bench.http.post(CHAT_PATH, content=chat(b',"x":' + lists))
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")
        assert "memory_budget_bytes" in refused.json()["error"]["message"]
        assert (await bench.http.post(CHAT_PATH, content=chat(b"", b"x" * SIZE))).status_code == 200
        too_large = await bench.http.post(CHAT_PATH, content=chat(b"", b"x" * 3 * MIB))
        assert too_large.status_code == 413, "its two copies would not fit"
        assert len(bench.engine.requests) == 1
        assert bench.gateway.edge.memory.held == 0


async def test_a_keyed_exchange_without_its_client_is_still_charged() -> None:
    """Its work goes on, and holds its memory until it ends."""
    async with gated() as (gate, engine), bench_of(real_engine=engine, silence_s=60) as bench:
        edge = bench.gateway.edge
        asking = asyncio.create_task(
            bench.chat(headers={"x-reef-agent-record-id": "k-1"}, note="x" * 5000)
        )
        await until(lambda: gate.asked == 1)
        held = edge.memory.held
        assert held > 10_000
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(
            lambda: (
                not edge.repeats._running["k-1"].ended
                and edge.repeats._running["k-1"].charge is not None
            )
        )
        assert edge.memory.held == held
        gate.opened.set()
        await until(lambda: edge.memory.held == 0)
        assert (
            await bench.chat(headers={"x-reef-agent-record-id": "k-1"}, note="x" * 5000)
        ).status_code == 200
        assert gate.asked == 1


async def test_a_report_holds_its_decoded_body(bench: Bench) -> None:
    """It waits decoded for the broker, so that is charged, too."""
    receipt = (await bench.chat()).headers["x-reef-agent-record-id"]
    bench.log.gate = asyncio.Event()
    metadata = {"x": [[]] * 50_000}
    sending = asyncio.create_task(bench.report(references=[receipt], score=1.0, metadata=metadata))
    await until(lambda: bench.gateway.edge.memory.held > 50_000 * 72)
    bench.log.gate.set()
    assert (await sending).status_code == 202
    assert bench.gateway.edge.memory.held == 0


def test_charges() -> None:
    """They add up, are refused where there is no room, and leave nothing behind."""
    memory = Memory(100)
    first, second = Charge(memory), Charge(memory)
    first.to(60)
    with pytest.raises(ApiError) as later:
        second.to(50)
    with pytest.raises(ApiError) as never:
        second.to(101)
    assert (later.value.status, later.value.retry_after_s) == (503, 1)
    assert (never.value.status, never.value.retry_after_s) == (413, None)
    assert memory.held == 60
    moved = first.moved()
    first.end()
    assert memory.held == 60
    moved.to(10)
    moved.end()
    moved.end()
    assert memory.held == 0


def test_small_bodies_are_not_looked_at() -> None:
    """Their decoded size does not matter, and looking for it would cost every request something."""
    assert decoded_bytes(orjson.dumps(CHAT)) == 0
    assert decoded_bytes(b"[" * 65536) > 65536
