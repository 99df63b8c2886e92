"""Receipts that clients choose: the same key and body are one exchange, whoever asks and how often."""

import asyncio

import httpx
import pytest

from reefcommon.errors import Unavailable
from services.gateway.domain.keys import KeyEntry

from .conftest import CHAT, bench_of
from .fakes import MemoryKeyStore
from .stub_engine import StubEngine


async def test_a_client_that_times_out_and_asks_again() -> None:
    """G7: one upstream call, one record, the same receipt and answer; another body is 409."""
    async with bench_of(stub=StubEngine(delay_s=0.6)) as bench:
        key = {"x-reef-agent-record-id": "order-17"}
        with pytest.raises(httpx.ReadTimeout):
            async with httpx.AsyncClient(base_url=bench.url, timeout=0.2) as hasty:
                await hasty.post(
                    "/v1/chat/completions",
                    json={"model": "reef", "messages": CHAT},
                    headers=key,
                )
        second = await bench.chat(headers=key)
        third = await bench.chat(headers=key)
        assert [answer.status_code for answer in (second, third)] == [200, 200]
        assert (
            second.headers["x-reef-agent-record-id"]
            == third.headers["x-reef-agent-record-id"]
            == "order-17"
        )
        assert second.content == third.content
        other = await bench.chat(headers=key, temperature=0.9)
        assert other.status_code == 409
        assert other.json()["error"]["param"] == "x-reef-agent-record-id"
        assert len(bench.engine.requests) == 1
        (record,) = bench.log.records
        assert record.event_id == "order-17"
        assert record.idempotency_digest


async def test_another_body_while_the_first_is_still_under_way() -> None:
    """G7: it does not get the other one's answer."""
    async with bench_of(stub=StubEngine(delay_s=0.6)) as bench:
        key = {"x-reef-agent-record-id": "order-18"}
        first = asyncio.create_task(bench.chat(headers=key))
        while not bench.engine.requests:
            await asyncio.sleep(0.01)
        other = await bench.chat(headers=key, temperature=0.9)
        assert (other.status_code, other.json()["error"]["code"]) == (409, "id_conflict")
        assert (await first).status_code == 200
        assert len(bench.engine.requests) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_many_at_once_on_two_gateways(stream: bool) -> None:
    """G7: ten requests with one key on two gateways at the same time: one upstream call, ten equal answers."""
    stub, key_store = StubEngine(delay_s=0.2), MemoryKeyStore()
    async with (
        bench_of(stub=stub, key_store=key_store) as one,
        bench_of(stub=stub, key_store=key_store) as two,
    ):
        key = {"x-reef-agent-record-id": "k-1"}
        answers = await asyncio.gather(
            *(bench.chat(headers=key, stream=stream) for bench in (one, two) for _ in range(5))
        )
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
        assert len(stub.requests) == 1
        assert len(one.log.records + two.log.records) == 1
        assert ("[DONE]" in answers[0].text) is stream


@pytest.mark.parametrize("stream", [False, True])
async def test_a_gateway_that_stood_still_past_its_lease_writes_nothing(stream: bool) -> None:
    """Another one has done the work meanwhile: what this one has is thrown away, and the other's answer is what the key gets."""
    key_store, key = MemoryKeyStore(), {"x-reef-agent-record-id": "k-9"}
    async with (
        bench_of(stub=StubEngine(delay_s=0.8), key_store=key_store, key_lease_s=0.3) as slow,
        bench_of(key_store=key_store) as other,
    ):
        renew, key_store.renew = key_store.renew, _never  # type: ignore[method-assign]
        late = asyncio.create_task(slow.chat(headers=key, stream=stream))
        while not slow.engine.requests:
            await asyncio.sleep(0.01)
        key_store.lose()  # and Redis has lost the key
        done = await other.chat(headers=key, stream=stream)
        key_store.renew = renew  # type: ignore[method-assign]
        told = await late
        assert done.status_code == 200
        assert '"not_durable"' in told.text
        assert (len(slow.log.records), len(other.log.records)) == (0, 1)
        assert (await slow.chat(headers=key, stream=stream)).content == done.content


async def test_a_halt_that_nobody_used_changes_nothing() -> None:
    key_store, key = MemoryKeyStore(), {"x-reef-agent-record-id": "k-9"}
    async with bench_of(
        stub=StubEngine(delay_s=0.8), key_store=key_store, key_lease_s=0.3
    ) as bench:
        key_store.renew = _never  # type: ignore[method-assign]
        waiting = asyncio.create_task(bench.chat(headers=key))
        while not bench.engine.requests:
            await asyncio.sleep(0.01)
        key_store.lose()
        assert (await waiting).status_code == 200
        assert len(bench.log.records) == 1


async def _never(key: str, entry: KeyEntry, *, lease_s: float) -> bool:
    """A halt, as the key_store sees it: no renewal comes."""
    raise Unavailable("stands still, as asked")


async def test_a_failure_leaves_the_key_free() -> None:
    """A 429 is recorded under a receipt of Reef's own, so that the next attempt with the key is a new one."""
    async with bench_of() as bench:
        key = {"x-reef-agent-record-id": "k-2"}
        first = await bench.chat("limited", headers=key)
        second = await bench.chat("limited", headers=key)
        assert [first.status_code, second.status_code] == [429, 429]
        assert len(bench.engine.requests) == 2
        assert first.headers["x-reef-agent-record-id"].startswith("rec-")
        assert "k-2" not in {record.event_id for record in bench.log.records}
        assert await bench.key_store.find("k-2") is None


@pytest.mark.parametrize(
    "key", ["", "a b", "x" * 129, "rep-1", "rec-" + "0" * 32 + "-abcd", "../x"]
)
async def test_keys_that_cannot_be_receipts(key: str) -> None:
    """400 that names the header."""
    async with bench_of() as bench:
        answer = await bench.chat(headers={"x-reef-agent-record-id": key})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "x-reef-agent-record-id"
        assert bench.engine.requests == []


async def test_the_key_store_is_away() -> None:
    """A keyed request gets 503 rather than a promise that cannot be kept; others go on."""
    async with bench_of() as bench:
        bench.key_store.away = True
        refused = await bench.chat(headers={"x-reef-agent-record-id": "k-3"})
        assert refused.status_code == 503
        assert refused.headers["retry-after"]
        assert (await bench.chat()).status_code == 200
