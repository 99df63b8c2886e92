"""The gateway on the real broker and the real store of heads, as its own process would run it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from reefcommon import topics
from reefcommon.events import (
    InferenceRecorded,
    ReleasePublished,
    ReleaseRejected,
    RollbackRequested,
    utc_now,
)
from reefcommon.ids import shard_in, time_ordered_hex
from reefcommon.settings import SystemSettings
from reefkit.kafka_topics import ensure_topics
from reefkit.redis_heads import RedisReleaseHeads, connect
from services.gateway.app import Gateway, build
from services.gateway.settings import Settings

from .conftest import CHAT, serving
from .fakes import release
from .stub_engine import StubEngine

pytestmark = [pytest.mark.broker, pytest.mark.redis]


@contextlib.asynccontextmanager
async def gateway(
    kafka_bootstrap: str, redis_url: str, state_dir: Path, stub: StubEngine
) -> AsyncIterator[tuple[httpx.AsyncClient, Gateway]]:
    """A gateway on the real systems."""
    await ensure_topics(kafka_bootstrap)
    async with serving(stub.app) as engine_url:
        system = SystemSettings(
            kafka_bootstrap=kafka_bootstrap,
            redis_url=redis_url,
            engine_urls=engine_url,
            state_dir=state_dir,
            experience_url="http://127.0.0.1:9",
        )
        made = build(system, Settings(snapshot_s=60, command_timeout_s=10))
        async with serving(made.app) as url, httpx.AsyncClient(base_url=url, timeout=20) as http:
            while not made.health.facts["following_releases"]():
                await asyncio.sleep(0.01)
            yield http, made


async def all_of(kafka_bootstrap: str, topic: topics.Topic) -> list[tuple[int, bytes, bytes]]:
    """(partition, key, value) of everything in a topic."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=kafka_bootstrap,
        group_id=None,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
    )
    await consumer.start()
    try:
        partitions = [TopicPartition(topic.name, n) for n in range(topic.partitions)]
        consumer.assign(partitions)
        ends = await consumer.end_offsets(partitions)
        rows = []
        while any([await consumer.position(p) < ends[p] for p in partitions]):
            for p, records in (await consumer.getmany(timeout_ms=200)).items():
                rows += [(p.partition, r.key, r.value) for r in records]
        return rows
    finally:
        await consumer.stop()


async def test_an_exchange_and_its_report_share_a_partition(
    kafka_bootstrap: str, redis_url: str, tmp_path: Path
) -> None:
    """The receipt ends in the key of its partition, and the report about it lies in the partition of the same number."""
    scenario = f"shared-{time_ordered_hex()[-6:]}"
    heads = connect(redis_url)
    await RedisReleaseHeads(heads).advance(release(scenario, 0, None))
    await heads.aclose()
    named = {"x-reef-scenario": scenario, "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
    async with gateway(kafka_bootstrap, redis_url, tmp_path, StubEngine()) as (http, _):
        answers = [
            await http.post(
                "/v1/chat/completions", json={"messages": CHAT, "stream": s}, headers=named
            )
            for s in (False, True)
        ]
        assert [a.status_code for a in answers] == [200, 200]
        receipts = [a.headers["x-reef-agent-record-id"] for a in answers]
        assert len({shard_in(receipt) for receipt in receipts}) == 1
        report = await http.post(
            "/reef/report", json={"score": 1, "references": receipts}, headers=named
        )
        assert report.status_code == 202, report.text
        ready = await http.get("/readyz")
        assert ready.json() == {"ready": True, "failures": {}}
    rows = [
        (p, k, InferenceRecorded.model_validate_json(v))
        for p, k, v in await all_of(kafka_bootstrap, topics.INFERENCES)
        if scenario.encode() in v
    ]
    assert [event.event_id for _, _, event in rows] == receipts
    assert {key.decode() for _, key, _ in rows} == {shard_in(receipts[0])}
    assert rows[0][2].traceparent == named["traceparent"]
    reports = [
        p for p, _, v in await all_of(kafka_bootstrap, topics.FEEDBACK) if scenario.encode() in v
    ]
    assert reports == [rows[0][0]]


async def test_a_published_release_is_routed_to(
    kafka_bootstrap: str, redis_url: str, tmp_path: Path
) -> None:
    """A release event moves the traffic at once; the request that was under way keeps its release."""
    scenario = f"moving-{time_ordered_hex()[-6:]}"
    heads = connect(redis_url)
    await RedisReleaseHeads(heads).advance(release(scenario, 0, None))
    await heads.aclose()
    stub = StubEngine(delay_s=0.5)
    async with (
        gateway(kafka_bootstrap, redis_url, tmp_path, stub) as (http, made),
        producer_of(kafka_bootstrap) as producer,
    ):
        early = asyncio.create_task(
            http.post(
                "/v1/chat/completions",
                json={"messages": CHAT},
                headers={"x-reef-scenario": scenario},
            )
        )
        await asyncio.sleep(0.2)
        published = ReleasePublished(
            event_id="x", at=utc_now(), scenario=scenario, release=release(scenario, 1, "adapter-1")
        )
        await producer.send_and_wait(
            topics.RELEASES.name, published.model_dump_json().encode(), key=scenario.encode()
        )
        for _ in range(100):
            head = made.handlers.table.head(scenario)
            if head is not None and head.sequence == 1:
                break
            await asyncio.sleep(0.02)
        late = await http.post(
            "/v1/chat/completions", json={"messages": CHAT}, headers={"x-reef-scenario": scenario}
        )
        assert late.headers["x-reef-release-id"] == f"rel-{scenario}-1"
        assert (await early).headers["x-reef-release-id"] == f"rel-{scenario}-0"
        assert [request["model"] for request in stub.requests] == ["reef", "adapter-1"]


async def test_rollback_waits_for_the_publisher(
    kafka_bootstrap: str, redis_url: str, tmp_path: Path
) -> None:
    """A command goes out, and the release event that names it is the answer."""
    scenario = f"back-{time_ordered_hex()[-6:]}"
    heads = connect(redis_url)
    store = RedisReleaseHeads(heads)
    await store.advance(release(scenario, 0, None))
    await store.advance(release(scenario, 1, "a"))
    await heads.aclose()
    async with (
        gateway(kafka_bootstrap, redis_url, tmp_path, StubEngine()) as (http, _),
        producer_of(kafka_bootstrap) as producer,
    ):
        publisher = asyncio.create_task(act_as_publisher(kafka_bootstrap, producer, scenario))
        answer = await http.post(
            f"/reef/scenarios/{scenario}/rollback",
            json={"release_id": f"rel-{scenario}-0", "reason": "worse"},
        )
        await publisher
        assert answer.status_code == 200, answer.text
        assert answer.json()["release_id"] == f"rel-{scenario}-2"
        assert answer.json()["operation"] == "rollback"
        assert (await http.get("/readyz")).status_code == 200
        routed = await http.post(
            "/v1/chat/completions", json={"messages": CHAT}, headers={"x-reef-scenario": scenario}
        )
        assert routed.headers["x-reef-release-id"] == f"rel-{scenario}-2"


async def test_rejections_are_known_after_a_restart(
    kafka_bootstrap: str, redis_url: str, tmp_path: Path
) -> None:
    """Those of before the start are read from the log, those after are heard; newest first, each once, and other scenarios' not."""
    scenario = f"refused-{time_ordered_hex()[-6:]}"
    heads = connect(redis_url)
    await RedisReleaseHeads(heads).advance(release(scenario, 0, None))
    await heads.aclose()

    async def reject(producer: AIOKafkaProducer, number: int, where: str = scenario) -> None:
        event = ReleaseRejected(
            event_id=f"{where}-{number}",
            at=utc_now(),
            scenario=where,
            outcome="rejected",
            reason=f"worse by {number}",
            candidate_id=f"cand-{number}",
        )
        await producer.send_and_wait(
            topics.RELEASES.name, event.model_dump_json().encode(), key=where.encode()
        )

    async with producer_of(kafka_bootstrap) as producer:
        await ensure_topics(kafka_bootstrap)
        for number in (1, 1, 2):
            await reject(producer, number)
        await reject(producer, 9, f"{scenario}-not")
        async with gateway(kafka_bootstrap, redis_url, tmp_path, StubEngine()) as (http, _):
            await reject(producer, 3)
            rows: list[dict[str, Any]] = []
            async with asyncio.timeout(60):
                while len(rows) < 3:
                    await asyncio.sleep(0.02)
                    rows = (await http.get(f"/reef/scenarios/{scenario}/rejections")).json()["data"]
            assert [(row["candidate_id"], row["reason"]) for row in rows] == [
                (f"cand-{n}", f"worse by {n}") for n in (3, 2, 1)
            ]


@contextlib.asynccontextmanager
async def producer_of(kafka_bootstrap: str) -> AsyncIterator[AIOKafkaProducer]:
    producer = AIOKafkaProducer(
        bootstrap_servers=kafka_bootstrap, acks="all", enable_idempotence=False
    )
    await producer.start()
    try:
        yield producer
    finally:
        await producer.stop()


async def act_as_publisher(kafka_bootstrap: str, producer: AIOKafkaProducer, scenario: str) -> None:
    """Answer the first rollback of this scenario with a release."""
    while True:
        for _, _, value in await all_of(kafka_bootstrap, topics.COMMANDS):
            if scenario.encode() not in value:
                continue
            command: Any = RollbackRequested.model_validate_json(value)
            fresh = release(scenario, 2, None, operation="rollback", reason=command.reason)
            event = ReleasePublished(
                event_id=fresh.release_id,
                at=utc_now(),
                scenario=scenario,
                release=fresh,
                command_id=command.event_id,
            )
            await producer.send_and_wait(
                topics.RELEASES.name, event.model_dump_json().encode(), key=scenario.encode()
            )
            return
        await asyncio.sleep(0.05)
