"""Clients that leave, a full queue, a loop that breaks, settings, metrics."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from pydantic import ValidationError

from tests.engine.conftest import CHAT, free_port, wait_until

pytestmark = pytest.mark.engine
LONG = {"messages": CHAT, "max_tokens": 1900, "ignore_eos": True}


async def test_a_client_that_leaves_a_stream_frees_its_row(node):
    loop = node.engine.loop
    async with (
        httpx.AsyncClient(base_url=node.url) as client,
        client.stream("POST", "/v1/chat/completions", json=LONG | {"stream": True}) as answer,
    ):
        async for _ in answer.aiter_lines():
            break
        assert loop.running == 1
        left = time.monotonic()
    await asyncio.to_thread(wait_until, lambda: loop.running == 0)
    assert time.monotonic() - left < 1.0


async def test_a_client_that_gives_up_waiting_frees_its_rows(node):
    loop = node.engine.loop
    before = loop.counters.aborted
    async with httpx.AsyncClient(base_url=node.url) as client:
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/chat/completions", json=LONG | {"n": 3}, timeout=0.4)
    await asyncio.to_thread(wait_until, lambda: loop.running == 0, 2.0)
    assert loop.counters.aborted == before + 3


def test_a_client_that_leaves_the_queue_is_forgotten(own_node):
    node = own_node(max_num_seqs=1)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(node.chat, max_tokens=600, ignore_eos=True)
        wait_until(lambda: node.engine.loop.running == 1)
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{node.url}/v1/chat/completions", json=LONG, timeout=0.2)
        wait_until(lambda: node.engine.loop.waiting == 0, 2.0)
        assert len(running.result()["choices"][0]["token_ids"]) == 600


def test_answers_of_one_request_that_are_too_long_together_are_refused(own_node, monkeypatch):
    """They would take the memory of several times the rows that there may be."""
    monkeypatch.setattr("services.engine.engine.ROW_TOKENS", 64)  # 256 for four rows
    node = own_node(max_num_seqs=4)
    with node.client() as client:
        refused = client.post("/v1/chat/completions", json=LONG | {"n": 4})
        assert refused.status_code == 400
        assert "name a max_tokens" in refused.json()["error"]["message"]
        assert client.post("/v1/chat/completions", json=LONG | {"n": 1}).status_code == 200
        few = LONG | {"n": 4, "max_tokens": 2}
        assert client.post("/v1/chat/completions", json=few).status_code == 200


def test_a_full_queue_says_when_to_come_back(own_node):
    node = own_node(max_queued_requests=1)
    with node.client() as client, ThreadPoolExecutor(1) as pool:
        client.post("/pause?mode=keep")
        queued = pool.submit(node.chat, max_tokens=1)
        wait_until(lambda: node.engine.loop.waiting == 1)
        refused = client.post("/v1/chat/completions", json=LONG)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["type"] == "server_error"
        client.post("/resume")
        queued.result()


def test_more_requests_than_rows_all_end(own_node):
    node = own_node(max_num_seqs=3)
    with ThreadPoolExecutor(10) as pool:
        answers = list(
            pool.map(lambda i: node.chat(max_tokens=5 + i, n=1 + i % 3, ignore_eos=True), range(10))
        )
    assert [len(answer["choices"][-1]["token_ids"]) for answer in answers] == [
        5 + i for i in range(10)
    ]


def test_a_prompt_that_breaks_the_model_breaks_its_own_request_only(own_node, monkeypatch):
    node = own_node()
    prefill = node.engine.loop.runner.prefill

    def fragile(ids, *args, **names):
        if len(ids) > 100:
            raise RuntimeError("out of memory")
        return prefill(ids, *args, **names)

    monkeypatch.setattr(node.engine.loop.runner, "prefill", fragile)
    with node.client() as client:
        broken = client.post(
            "/v1/chat/completions", json={"messages": [{"role": "user", "content": "x" * 150}]}
        )
        assert broken.status_code == 500
        assert "out of memory" in broken.json()["error"]["message"]
        stream = client.post(
            "/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "x" * 150}], "stream": True},
        )
        assert "out of memory" in stream.text
        assert "[DONE]" not in stream.text
        node.chat(max_tokens=2)
        assert client.get("/health").status_code == 200


def test_a_broken_loop_fails_requests_and_health(own_node, monkeypatch):
    node = own_node()
    with node.client() as client, ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.post, "/v1/chat/completions", json=LONG)
        wait_until(lambda: node.engine.loop.running == 1)
        assert client.get("/health").status_code == 200
        monkeypatch.setattr(node.engine.loop.runner, "_forward", lambda *_: 1 / 0)
        assert running.result().status_code == 503
        assert client.get("/health").status_code == 503
        assert client.post("/v1/chat/completions", json=LONG).status_code == 503
        assert client.post("/pause").status_code == 503


def test_metrics_under_vllms_names(node):
    node.chat(max_tokens=3, ignore_eos=True)
    with node.client() as client:
        text = client.get("/metrics").text
    values = {
        line.split("{")[0]: float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if not line.startswith("#")
    }
    assert values["vllm:num_requests_running"] == 0
    assert values["vllm:num_requests_waiting"] == 0
    assert values["vllm:generation_tokens_total"] >= 3
    assert values["vllm:prompt_tokens_total"] > 0
    assert values["vllm:kv_cache_usage_perc"] == 0


def test_unknown_settings_are_refused(tiny_path):
    from services.engine.settings import Settings

    with pytest.raises(ValidationError, match="max_num_seq\n"):
        Settings(model_path=tiny_path, max_num_seq=3)
    with pytest.raises(ValidationError, match="max_model_len"):
        Settings(model_path=tiny_path, max_model_len=0)


def test_a_key_is_asked_for_where_one_is_set(own_node):
    with own_node(api_key="secret").client() as client:
        assert client.post("/v1/chat/completions", json=LONG).status_code == 401
        assert client.post("/pause", headers={"authorization": "Bearer wrong"}).status_code == 401
        assert (
            client.get("/v1/models", headers={"authorization": "Bearer secret"}).status_code == 200
        )
        assert client.get("/health").status_code == client.get("/metrics").status_code == 200


def test_a_context_longer_than_the_models_is_refused(tiny_path):
    from services.engine.app import build_engine
    from services.engine.settings import Settings

    with (
        pytest.raises(ValueError, match="max_model_len"),
        contextlib.closing(asyncio.new_event_loop()) as events,
    ):
        build_engine(Settings(model_path=tiny_path, max_model_len=4096), events)


def test_the_context_is_the_models_if_it_is_shorter_than_the_default(tiny_path):
    from services.engine.app import build_engine
    from services.engine.settings import Settings

    with contextlib.closing(asyncio.new_event_loop()) as events:
        engine = build_engine(Settings(model_path=tiny_path), events)
        assert engine.settings.max_model_len == 2048
        short = build_engine(Settings(model_path=tiny_path, max_model_len=64), events)
        assert short.settings.max_model_len == 64


def program(
    tiny_path, port, code="from services.engine.__main__ import main; raise SystemExit(main())"
):
    environment = os.environ | {
        "REEF_ENGINE_MODEL_PATH": str(tiny_path),
        "REEF_ENGINE_PORT": str(port),
    }
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def answers(port):
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=1).status_code == 200
    except httpx.TransportError:
        return False


def test_the_program_serves_and_exits_with_1_when_its_loop_breaks(tiny_path):
    port = free_port()
    code = (
        "import services.engine.batch as b, services.engine.__main__ as m\n"
        "b.RunningBatch.step = lambda self, version: 1 / 0\n"
        "raise SystemExit(m.main())"
    )
    process = program(tiny_path, port, code)
    try:
        wait_until(lambda: process.poll() is not None or answers(port), 150)
        broken = httpx.post(
            f"http://127.0.0.1:{port}/v1/chat/completions",
            json={"messages": CHAT, "max_tokens": 5},
            timeout=60,
        )
        assert broken.status_code == 503
        output, _ = process.communicate(timeout=60)
        assert process.returncode == 1
        assert "generation_loop_crashed" in output
    finally:
        process.kill()
        process.communicate()
