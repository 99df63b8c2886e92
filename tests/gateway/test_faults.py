"""What goes wrong on either side of the gateway, and what is recorded of it."""

import asyncio
import re
import time
from collections import Counter

import httpx
import pytest

from reefcommon.events import InferenceRecorded
from services.gateway import metrics
from services.gateway.upstream.pool import Pool

from .conftest import Bench, bench_of
from .gated_engine import gated, until
from .stub_engine import StubEngine


def in_flight() -> float:
    return metrics.IN_FLIGHT._value.get()


async def drop_after(bench: Bench, scenario: str, chunks: int, *, patience_s: float = 0.3) -> str:
    """Read some chunks of a stream, or wait in vain for the first, then close the connection. Returns the receipt if one came."""
    receipt = ""
    async with httpx.AsyncClient(base_url=bench.url, timeout=20) as leaving:
        body = {"messages": [{"role": "user", "content": "go"}], "stream": True}
        try:
            async with asyncio.timeout(patience_s if chunks == 0 else 20):
                async with leaving.stream(
                    "POST", "/v1/chat/completions", json=body, headers={"x-reef-scenario": scenario}
                ) as response:
                    receipt = response.headers["x-reef-agent-record-id"]
                    seen = 0
                    async for line in response.aiter_lines():
                        seen += '"content": "' in line or '"content":"' in line
                        if seen > chunks:  # the first one has the role alone
                            break
        except TimeoutError:
            pass
    return receipt


async def settled(bench: Bench, count: int) -> list[InferenceRecorded]:
    for _ in range(300):
        if len(bench.log.records) >= count:
            return bench.log.records
        await asyncio.sleep(0.01)
    raise AssertionError(f"{len(bench.log.records)} records, {count} wanted")


async def test_a_client_that_leaves_mid_stream(bench: Bench) -> None:
    """G2, G3: after 10 of 60 chunks the engine's connection is cut within 1 s, the record is `aborted` with what came, the gauge is 0.

    The other half of G2, that it is never trained on, is in tests/experience/test_samples.py.
    """
    before = in_flight()
    receipt = await drop_after(bench, "slow", 10)
    left = time.monotonic()
    record = await bench.log.record(receipt)
    assert record.outcome == "aborted"
    assert 10 <= len(record.completions[0].token_ids) < 30
    assert record.usage is not None
    assert record.usage.estimated
    assert record.usage.completion_tokens == len(record.completions[0].token_ids)
    assert record.response is not None
    assert record.response["choices"][0]["message"]["content"].startswith("Hello there friendHello")
    assert record.response["choices"][0]["finish_reason"] is None
    for _ in range(100):
        if bench.engine.left_at:
            break
        await asyncio.sleep(0.01)
    assert bench.engine.left_at[0] - left < 1.0
    assert in_flight() == before
    assert bench.engines.nodes[0].in_flight == 0


async def test_a_client_that_leaves_before_the_first_token(bench: Bench) -> None:
    """G3: the engine's connection is cut within 1 s also where nothing has come yet."""
    before = in_flight()
    await drop_after(bench, "silent", 0)
    left = time.monotonic()
    (record,) = await settled(bench, 1)
    assert record.outcome == "aborted"
    assert record.usage is None
    for _ in range(100):
        if bench.engine.left_at:
            break
        await asyncio.sleep(0.01)
    assert bench.engine.left_at[0] - left < 1.0
    assert in_flight() == before


@pytest.mark.parametrize(
    "early",
    [b"", b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{"],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_answer(stream: bool, early: bytes) -> None:
    """G3: so it is where the engine has not sent its head yet, or only the beginning of a unary answer."""
    before = in_flight()
    async with gated() as (gate, engine), bench_of(real_engine=engine, silence_s=120) as bench:
        gate.early = early
        asking = asyncio.create_task(bench.chat(stream=stream))
        await until(lambda: gate.asked == 1)
        assert gate.left == 0
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: gate.left == 1 and len(bench.log.records) == 1)
        (record,) = bench.log.records
        assert (record.outcome, record.usage, record.completions) == ("aborted", None, ())
        await until(lambda: in_flight() == before)
        assert bench.engines.nodes[0].in_flight == 0


@pytest.mark.parametrize("scenario", ["cut", "torn"])
async def test_a_stream_without_its_terminator(bench: Bench, scenario: str) -> None:
    """An error event instead of [DONE]; the record is `upstream_incomplete` with what came."""
    before = await counted(bench)
    answer = await bench.chat(scenario, stream=True)
    assert answer.status_code == 200
    assert "[DONE]" not in answer.text
    assert '"error"' in answer.text.strip().splitlines()[-1]
    (record,) = bench.log.records
    assert record.outcome == "upstream_incomplete"
    assert record.completions[0].token_ids
    after = await counted(bench)
    assert (after[200] - before[200], after[502] - before[502]) == (0, 1), "no answer was served"
    keyed = {"x-reef-agent-record-id": f"order-{scenario}"}
    await bench.chat(scenario, stream=True, headers=keyed)
    assert (await counted(bench))[502] - after[502] == 1


async def counted(bench: Bench) -> Counter[int]:
    """The requests by status, as the metrics have them."""
    text = (await bench.http.get("/metrics")).text
    rows = re.findall(r'requests_total\{route="/v1/chat/completions",status="(\d+)"\} (.*)', text)
    return Counter({int(status): int(float(count)) for status, count in rows})


async def test_an_upstream_that_limits(bench: Bench) -> None:
    """G8: 429 with Retry-After is relayed as it is, and nothing is asked twice."""
    for stream in (False, True):
        answer = await bench.chat("limited", stream=stream)
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "7"
        assert answer.json()["error"]["message"] == "slow down"
        assert answer.headers["x-reef-agent-record-id"]
    assert len(bench.engine.requests) == 2
    assert [(r.outcome, r.status) for r in bench.log.records] == [("failed", 429)] * 2
    assert "slow down" in str(bench.log.records[0].error)


async def test_nothing_is_retried_after_the_first_byte(bench: Bench) -> None:
    """G8: a connection that breaks in the middle of a stream leads to one upstream call."""
    await bench.chat("torn", stream=True)
    assert len(bench.engine.requests) == 1


@pytest.mark.parametrize(("scenario", "status"), [("broken", 500), ("garbage", 502)])
async def test_an_upstream_that_fails(bench: Bench, scenario: str, status: int) -> None:
    """Its own words are relayed where it has any; the record is `failed`."""
    answer = await bench.chat(scenario)
    assert answer.status_code == status
    assert answer.json()["error"]["message"]
    (record,) = bench.log.records
    assert (record.outcome, record.status) == ("failed", status)


async def test_an_error_event_in_a_stream_is_a_failure(bench: Bench) -> None:
    """The engine's error event is relayed with its terminator, and the record is `failed`."""
    answer = await bench.chat("misfire", stream=True)
    assert "out of memory" in answer.text
    (record,) = bench.log.records
    assert record.outcome == "failed"


async def test_no_engine_there() -> None:
    """502 in the API's shape, a record, and another node is tried where one cannot be connected to."""
    async with bench_of() as bench:
        good = bench.engines.nodes[0].url
        dead = type(bench.engines.nodes[0])("http://127.0.0.1:9")
        bench.engines.nodes[:] = [dead]
        bench.engines._pools[dead.url] = Pool(dead.url, [], connect_timeout_s=1, read_timeout_s=5)
        answer = await bench.chat()
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "upstream_failed"
        bench.engines.nodes[:] = [dead, type(dead)(good)]
        assert [(await bench.chat()).status_code for _ in range(4)] == [200] * 4
        assert [r.outcome for r in bench.log.records] == ["failed", "ok", "ok", "ok", "ok"]


async def test_an_engine_that_is_silent_for_too_long() -> None:
    """504 before the first byte of a unary answer."""
    async with bench_of(silence_s=0.3, stub=StubEngine(delay_s=2)) as bench:
        answer = await bench.chat()
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "upstream_timeout"


async def test_an_adapter_that_no_node_holds(bench: Bench) -> None:
    """The head's adapter is Reef's affair: the client is told to come again, not that its model does not exist. A pin is 409."""
    answer = await bench.chat("absent")
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    pinned = await bench.chat("absent", headers={"x-reef-release-id": "rel-absent-0"})
    assert pinned.status_code == 409
    unknown = await bench.chat(headers={"x-reef-release-id": "rel-nobody"})
    assert unknown.status_code == 409


async def test_an_event_that_is_not_acknowledged(bench: Bench) -> None:
    """503 with Retry-After instead of the answer; in a stream an error event instead of [DONE]."""
    bench.log.broken = True
    answer = await bench.chat()
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert answer.json()["error"]["code"] == "not_durable"
    streamed = await bench.chat(stream=True)
    assert "[DONE]" not in streamed.text
    assert "not_durable" in streamed.text


async def test_the_end_of_a_stream_waits_for_the_acknowledgement(bench: Bench) -> None:
    """Everything but [DONE] has come before the event is acknowledged."""
    bench.log.gate = asyncio.Event()
    body = {"messages": [{"role": "user", "content": "go"}], "stream": True}
    async with bench.http.stream("POST", "/v1/chat/completions", json=body) as response:
        lines = response.aiter_lines()
        seen = [line async for line in take_until(lines, '"finish_reason":"stop"')]
        assert seen
        following = asyncio.create_task(anext(line async for line in lines if line))
        await asyncio.sleep(0.2)
        assert not following.done()
        bench.log.gate.set()
        assert "[DONE]" in await following


async def take_until(lines, mark):
    async for line in lines:
        yield line
        if mark in line:
            return


async def test_a_large_body_leaves_a_claim_check(bench: Bench) -> None:
    """Over 900 kB the event refers to a body in the object store; what it refers to is the exchange."""
    answer = await bench.http.post(
        "/v1/chat/completions", json={"messages": [{"role": "user", "content": "x" * 1_000_000}]}
    )
    assert answer.status_code == 200
    (record,) = bench.log.records
    assert record.body_ref is not None
    assert record.request is None
    assert record.completions[0].token_ids == (10, 11, 12)
    assert b'"xxx' in bench.bodies.bodies[record.body_ref.sha256]
    assert len(bench.bodies.bodies[record.body_ref.sha256]) == record.body_ref.size_bytes
