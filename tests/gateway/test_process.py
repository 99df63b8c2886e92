"""The gateway as a process of its own: it stops when told, and what it answered is in the log."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from reefcommon import topics
from reefcommon.events import InferenceRecorded
from reefcommon.ids import time_ordered_hex
from reefkit.kafka_topics import ensure_topics
from services.gateway.lifecycle import Lifecycle

from .conftest import CHAT, bench_of, serving
from .gated_engine import gated, until
from .stub_engine import StubEngine, chunk, sse
from .test_broker import all_of

pytestmark = [pytest.mark.broker, pytest.mark.redis]


@contextlib.asynccontextmanager
async def gateway_process(
    kafka: str, redis: str, state: Path, engine: str, drain_s: str, **more: str
) -> AsyncIterator[tuple[asyncio.subprocess.Process, httpx.AsyncClient]]:
    """A gateway that is ready, and a client of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "REEF_KAFKA_BOOTSTRAP": kafka,
        "REEF_REDIS_URL": redis,
        "REEF_ENGINE_URLS": engine,
        "REEF_STATE_DIR": str(state),
        "REEF_GATEWAY_PORT": str(port),
        "REEF_GATEWAY_DRAIN_S": drain_s,
        **more,
    }
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.gateway", env=env, stderr=asyncio.subprocess.PIPE
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            await until_ready(http)
            yield process, http
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def recorded(kafka: str, mark: str) -> list[InferenceRecorded]:
    """The records with this mark in the log."""
    values = [
        value for _, _, value in await all_of(kafka, topics.INFERENCES) if mark.encode() in value
    ]
    return [InferenceRecorded.model_validate_json(value) for value in values]


async def until_ready(http: httpx.AsyncClient) -> None:
    """Wait for `/readyz`."""
    for _ in range(1200):
        try:
            if (await http.get("/readyz")).status_code == 200:
                return
        except httpx.TransportError:
            pass
        await asyncio.sleep(0.05)
    raise AssertionError("the gateway was not ready in time")


async def test_everything_answered_before_sigterm_is_in_the_log(
    kafka_bootstrap: str, redis_url: str, tmp_path: Path
) -> None:
    """G1: 500 exchanges, SIGTERM right after the last reply, a stream still running: all records are there, exit 0 in time."""
    await ensure_topics(kafka_bootstrap)
    mark = f"mark-{time_ordered_hex()[-8:]}"
    async with (
        serving(StubEngine().app) as engine,
        gateway_process(kafka_bootstrap, redis_url, tmp_path, engine, "5") as (process, http),
    ):
        named = {"x-reef-tag-session": mark}
        running = asyncio.create_task(
            http.post(
                "/v1/chat/completions",
                json={"messages": CHAT, "stream": True, "max_tokens": 2000},
                headers=named,
            )
        )
        answers = await asyncio.gather(
            *(
                http.post("/v1/chat/completions", json={"messages": CHAT}, headers=named)
                for _ in range(500)
            )
        )
        process.send_signal(signal.SIGTERM)
        stopping = time.monotonic()
        streamed = await running
        assert streamed.text.endswith("data: [DONE]\n\n")
        code = await asyncio.wait_for(process.wait(), 12)
        assert process.stderr is not None
        errors = (await process.stderr.read()).decode()
    assert code in {0, -signal.SIGTERM}, errors
    assert time.monotonic() - stopping < 12
    assert "gateway_stopped" in errors
    assert {answer.status_code for answer in answers} == {200}
    receipts = {answer.headers["x-reef-agent-record-id"] for answer in [*answers, streamed]}
    events = await recorded(kafka_bootstrap, mark)
    assert {event.event_id for event in events} == receipts
    assert len(events) == len(receipts) == 501


class EndlessStub(StubEngine):
    """Its streams end when their reader leaves."""

    async def stream(self, body):
        while True:
            yield sse(chunk(body, 0, {"content": "a "}, token=1))
            await asyncio.sleep(0.05)


async def test_what_outlives_the_deadline_is_cut_off(
    kafka_bootstrap: str, redis_url: str, tmp_path: Path
) -> None:
    """G1: streams that never end, one of them keyed: each client is told, each is recorded as `aborted`, and the log says how many they were."""
    await ensure_topics(kafka_bootstrap)
    mark = f"mark-{time_ordered_hex()[-8:]}"

    async def no_key(_request: Request) -> Response:
        return JSONResponse({"complete": True, "whole": True, "empty": False}, 404)

    async with (
        serving(EndlessStub().app) as engine,
        serving(Starlette(routes=[Route("/{path:path}", no_key)])) as experience,
        gateway_process(
            kafka_bootstrap,
            redis_url,
            tmp_path,
            engine,
            "1",
            REEF_EXPERIENCE_URL=experience,
            REEF_GATEWAY_KEY_LEASE_S="3",
        ) as (process, http),
    ):
        begun: list[str] = []

        async def ask(**named: str) -> str:
            body = {"messages": CHAT, "stream": True}
            while True:  # a key is asked of the store first, which may not be up to date yet
                async with http.stream(
                    "POST",
                    "/v1/chat/completions",
                    json=body,
                    headers={"x-reef-tag-session": mark, **named},
                ) as answer:
                    if answer.status_code == 200:
                        begun.append(answer.headers["x-reef-agent-record-id"])
                        return (await answer.aread()).decode()
                await asyncio.sleep(0.1)

        asking = [
            asyncio.create_task(ask(**named))
            for named in ({}, {}, {"x-reef-agent-record-id": mark})
        ]
        async with asyncio.timeout(60):
            while len(begun) < 3:
                await asyncio.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        texts = await asyncio.gather(*asking)
        assert process.stderr is not None
        said = (await asyncio.wait_for(process.stderr.read(), 60)).decode()
        assert await process.wait() in {0, -signal.SIGTERM}
    assert all('"code":"stopped"' in text and "[DONE]" not in text for text in texts)
    assert "Traceback" not in said
    passed = next(line for line in said.splitlines() if "drain_deadline_passed" in line)
    assert re.search(r"requests\W+3\b", passed), passed
    assert re.search(r"exchanges\W+1\b", passed), passed
    assert re.search(r"records\W+0\b", passed), passed
    assert {
        event.event_id: event.outcome for event in await recorded(kafka_bootstrap, mark)
    } == dict.fromkeys(begun, "aborted")


async def test_the_deadline_is_one_for_all() -> None:
    """G1: keyed exchanges that go on without their clients have what is left of the drain, not a second one."""
    async with (
        gated() as (gate, engine),
        bench_of(real_engine=engine, silence_s=3600, drain_s=3600) as bench,
    ):
        asking = asyncio.create_task(bench.chat(headers={"x-reef-agent-record-id": "k-1"}))
        await until(lambda: gate.asked == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        edge = bench.gateway.edge
        edge.stopping.deadline = (
            asyncio.get_running_loop().time()
        )  # it was told to stop an hour ago
        lifecycle = Lifecycle(
            cast("Any", SimpleNamespace(edge=edge)),
            cast("Any", None),
            cast("Any", SimpleNamespace(log=SimpleNamespace(direct=True))),
        )
        await asyncio.wait_for(lifecycle._drain(), 60)
        (record,) = bench.log.records
        assert (record.event_id, record.outcome) == ("k-1", "aborted")
