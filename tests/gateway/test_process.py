"""The gateway as a process of its own: it stops when told, and what it answered is in the log."""

import asyncio
import os
import signal
import socket
import sys
import time
from pathlib import Path

import httpx
import pytest

from reefcommon import topics
from reefcommon.bus import ensure_topics
from reefcommon.events import InferenceRecorded
from reefcommon.ids import time_ordered_hex

from .conftest import CHAT, serving
from .stub_engine import StubEngine
from .test_broker import all_of

pytestmark = [pytest.mark.broker, pytest.mark.redis]


async def test_everything_answered_before_sigterm_is_in_the_log(kafka_bootstrap: str, redis_url: str, tmp_path: Path) -> None:
    """G1: 500 exchanges, SIGTERM right after the last reply, a stream still running: all records are there, exit 0 in time."""
    await ensure_topics(kafka_bootstrap)
    mark = f"mark-{time_ordered_hex()[-8:]}"
    async with serving(StubEngine().app) as engine_url:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "REEF_KAFKA_BOOTSTRAP": kafka_bootstrap,
            "REEF_REDIS_URL": redis_url,
            "REEF_ENGINE_URLS": engine_url,
            "REEF_STATE_DIR": str(tmp_path),
            "REEF_GATEWAY_PORT": str(port),
            "REEF_GATEWAY_DRAIN_S": "5",
        }
        process = await asyncio.create_subprocess_exec(sys.executable, "-m", "services.gateway", env=env, stderr=asyncio.subprocess.PIPE)
        try:
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=20) as http:
                await until_ready(http)
                named = {"x-reef-tag-session": mark}
                running = asyncio.create_task(
                    http.post("/v1/chat/completions", json={"messages": CHAT, "stream": True, "max_tokens": 2000}, headers=named)
                )
                answers = await asyncio.gather(
                    *(http.post("/v1/chat/completions", json={"messages": CHAT}, headers=named) for _ in range(500))
                )
                process.send_signal(signal.SIGTERM)
                stopping = time.monotonic()
                streamed = await running
                assert streamed.text.endswith("data: [DONE]\n\n")
            code = await asyncio.wait_for(process.wait(), 12)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.stderr is not None
        errors = (await process.stderr.read()).decode()
    assert code in {0, -signal.SIGTERM}, errors
    assert time.monotonic() - stopping < 12
    assert "gateway_stopped" in errors
    assert {answer.status_code for answer in answers} == {200}
    receipts = {answer.headers["x-reef-agent-record-id"] for answer in [*answers, streamed]}
    events = [
        InferenceRecorded.model_validate_json(value)
        for _, _, value in await all_of(kafka_bootstrap, topics.INFERENCES)
        if mark.encode() in value
    ]
    assert {event.event_id for event in events} == receipts
    assert len(events) == len(receipts) == 501


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
