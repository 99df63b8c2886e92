"""Reads what a run has left: every topic to its real end, the store after the stop, the
trainer's ledger, the heads in Redis.
"""

import hashlib
import sqlite3
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import orjson
import redis.asyncio
from aiokafka import AIOKafkaConsumer, TopicPartition
from pydantic import Field, TypeAdapter

from reefcommon import events, topics
from services.experience.clickhouse import Database
from tests.chaos.facts import Heads, LedgerJob, Logged, StoredRecord, StoredReport

_EVENT: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        events.InferenceRecorded
        | events.FeedbackReported
        | events.SampleReady
        | events.StepCompleted
        | events.SampleRefused
        | events.CandidateProposed
        | events.CandidateEvaluated
        | events.ReleasePublished
        | events.ReleasePending
        | events.ReleaseRejected
        | events.ServingSynced
        | events.ScenarioCreateRequested
        | events.RollbackRequested
        | events.PromoteRequested
        | events.DeadLettered,
        Field(discriminator="type"),
    ]
)
QUIET_S = 2.0


async def read_log(bootstrap: str) -> tuple[Logged, ...]:
    """Every event of every topic, dead letters too, without a group. The embedded broker may
    name an end that is too low: it is over when nothing has come for a while and every position
    is at the end that came with the last fetch.
    """
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        max_partition_fetch_bytes=8 * 1024 * 1024,
    )
    await consumer.start()
    try:
        await consumer.topics()
        names = [name for topic in topics.ALL for name in (topic.name, topic.dead)]
        partitions = [
            TopicPartition(name, n)
            for name in names
            for n in sorted(consumer.partitions_for_topic(name) or ())
        ]
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        ends = await consumer.end_offsets(partitions)
        found: dict[
            tuple[str, int, int], Logged
        ] = {}  # by place: what is being merged is read twice
        since = time.monotonic()
        while time.monotonic() - since < QUIET_S or not await _at_end(consumer, ends):
            for at, records in (await consumer.getmany(timeout_ms=200)).items():
                since = time.monotonic()
                for r in records:
                    event = Logged(
                        at.topic,
                        at.partition,
                        r.offset,
                        _EVENT.validate_json(r.value),
                        digest(r.value),
                    )
                    found.setdefault((at.topic, at.partition, r.offset), event)
        return tuple(found.values())
    finally:
        await consumer.stop()


async def _at_end(consumer: AIOKafkaConsumer, ends: Mapping[TopicPartition, int]) -> bool:
    for at, end in ends.items():
        if await consumer.position(at) < max(end, consumer.highwater(at) or 0):
            return False
    return True


def digest(value: bytes) -> str:
    """As the store keeps it of an event's bytes."""
    return hashlib.blake2b(value, digest_size=16).hexdigest()


async def read_heads(url: str) -> dict[str, Heads]:
    """Head and chain of every scenario."""
    async with redis.asyncio.Redis.from_url(url, decode_responses=True) as client:
        found = {}
        for scenario in sorted(await client.smembers("reef:scenarios")):
            head = await client.get(f"reef:{{{scenario}}}:head")
            chain = await client.lrange(f"reef:{{{scenario}}}:chain", 0, -1)
            found[scenario] = Heads(head or "", tuple(chain))
        return found


async def live_works(url: str) -> int:
    """Pieces of the publisher's work that have not ended."""
    async with redis.asyncio.Redis.from_url(url) as client:
        return int(await client.scard("reef:works"))


async def read_store(
    state_dir: Path,
) -> tuple[tuple[StoredRecord, ...], tuple[StoredReport, ...], tuple[events.SampleReady, ...]]:
    """The rows of the store, opened after the stop: chDB lets one process in."""
    database = Database.embedded(state_dir / "chdb")
    try:
        records = await database.query(
            "SELECT record_id, digest, response, outcome FROM records FINAL"
        )
        reports = await database.query("SELECT report_id, state, sample_id FROM reports FINAL")
        samples = await database.query(
            "SELECT sample_id AS event_id, scenario, at, recorded_at, record_ids, report_id, "
            "tokens, prompt_length, loss_mask, logprobs, untrainable FROM samples FINAL"
        )
    finally:
        await database.close()
    return (
        tuple(
            StoredRecord(row["record_id"], row["digest"], _content(row["response"]), row["outcome"])
            for row in records
        ),
        tuple(StoredReport(row["report_id"], row["state"], row["sample_id"]) for row in reports),
        tuple(map(events.SampleReady.model_validate, samples)),
    )


def _content(response: str) -> str:
    body = orjson.loads(response) if response else None
    choices = (body or {}).get("choices") or [{}]
    return str((choices[0].get("message") or {}).get("content") or "")


def read_ledger(state_dir: Path) -> tuple[LedgerJob, ...]:
    """The trainer's jobs, after the stop."""
    path = state_dir / "trainer" / "ledger.sqlite"
    with sqlite3.connect(path) as db:
        rows = db.execute("select job_id, binding, state, body from jobs order by seq").fetchall()
    db.close()
    return tuple(
        LedgerJob(job, binding, state, tuple(orjson.loads(body)["sample_ids"]))
        for job, binding, state, body in rows
    )
