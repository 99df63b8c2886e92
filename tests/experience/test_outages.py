"""The service on a real broker that breaks, and under reports that come when they like."""

import asyncio
import random
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from aiokafka import AIOKafkaProducer
from prometheus_client import REGISTRY

from reefcommon import events, ids, topics
from reefkit import guard
from reefkit.kafka_topics import ensure_topics
from reefkit.retry import RetryPolicy
from services.experience import lifecycle
from services.experience.clickhouse import Database
from tests.experience.factory import inference, report, user
from tests.experience.proxy import proxied
from tests.experience.test_broker import Switched, ready, running, samples_of, send, summary, until
from tests.replay.reading import everything

pytestmark = [pytest.mark.broker, pytest.mark.store]


async def letters(bootstrap: str, topic: topics.Topic, scenario: str) -> list[events.DeadLettered]:
    values = [
        record.value
        for record in await everything(bootstrap, topic.dead)
        if b"event.dead.v1" in (record.value or b"")
    ]
    found = {
        letter.event_id: letter for letter in map(events.DeadLettered.model_validate_json, values)
    }  # at least once
    return [letter for letter in found.values() if letter.scenario == scenario]


async def test_reports_that_come_5_ms_after_their_answers_are_all_joined(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    """E1: under load, from many clients at once; and a receipt that nobody knows is parked, then dead-lettered and counted."""
    expired = REGISTRY.get_sample_value("reef_reports_expired_total") or 0.0
    async with running(kafka_bootstrap, tmp_path, report_wait_s=1.0, sweep_every_s=0.2) as client:
        await until(lambda: ready(client))
        async with AIOKafkaProducer(
            bootstrap_servers=kafka_bootstrap, acks="all", enable_idempotence=False
        ) as producer:

            async def say(topic: topics.Topic, event: Any) -> None:
                key = (ids.shard_in(event.event_id) or "").encode()
                await producer.send_and_wait(
                    topic.name, event.model_dump_json(exclude_none=True).encode(), key=key
                )

            async def one(number: int) -> None:
                await asyncio.sleep(random.random())
                record = inference((user(f"soon {number}"),), scenario="soon")
                said = report(record.event_id, scenario="soon")
                if number % 10:
                    await say(topics.INFERENCES, record)
                    await asyncio.sleep(0.005)
                    await say(topics.FEEDBACK, said)
                else:  # a gateway whose report overtakes its record
                    await say(topics.FEEDBACK, said)
                    await asyncio.sleep(0.3)
                    await say(topics.INFERENCES, record)

            await asyncio.gather(
                *(one(number) for number in range(400)),
                say(topics.FEEDBACK, report("rec-nobody", scenario="soon")),
            )
        await until(
            summary(
                client,
                "soon",
                records={"ok": 400},
                samples={"trainable": 400},
                reports={"joined": 400, "expired": 1},
            ),
            within_s=180,
        )
    # On a slow machine others may have waited too long as well; their records came, so they were joined all the same.
    reasons = [letter.reason for letter in await letters(kafka_bootstrap, topics.FEEDBACK, "soon")]
    assert reasons.count("unknown receipts after 1 s: rec-nobody") == 1
    assert (REGISTRY.get_sample_value("reef_reports_expired_total") or 0.0) >= expired + 1


def many(scenario: str, count: int) -> list[tuple[bytes, bytes]]:
    """(key, value) of exchanges that differ in their ids and questions."""
    text = inference((user("?"),), record_id="@", scenario=scenario).model_dump_json(
        exclude_none=True
    )
    made = [ids.new_record_id(ids.shard_of(scenario, str(number))) for number in range(count)]
    return [
        (
            (ids.shard_in(one) or "").encode(),
            text.replace('"@"', f'"{one}"').replace('"?"', f'"{one}"').encode(),
        )
        for one in made
    ]


def retries() -> float:
    """How often the service's handler was called again, as the bus counts it."""
    counted = [
        sample
        for metric in guard.RETRIES.collect()
        for sample in metric.samples
        if sample.name == "reef_event_retries_total"
    ]
    return sum(sample.value for sample in counted if sample.labels["service"] == "experience")


async def test_ten_thousand_events_wait_for_a_store_that_is_away(
    kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E4 and E5: 10,000 come in meanwhile, one of them poison: 9,999 rows, a sample for each report and one dead letter with its reason.
    Readiness fails until then, and nobody has acted. It takes far more attempts than what fails for another reason is given."""
    # the outage is measured in attempts; at their usual pace these would take minutes
    monkeypatch.setattr(guard, "RETRY", RetryPolicy(max_delay_s=0.05))
    plain = Database.embedded(tmp_path / "chdb")
    database = Switched(plain._connect, plain.where)
    poison = b'{"type": "inference.recorded.v1", "scenario": "ten"}'
    async with running(kafka_bootstrap, tmp_path, database, batch_records=2000) as client:
        await until(lambda: ready(client))
        database.away_now = True
        before = retries()
        made = many("ten", 9_999)
        said = [report(orjson.loads(value)["event_id"], scenario="ten") for _, value in made[:50]]
        async with AIOKafkaProducer(
            bootstrap_servers=kafka_bootstrap, acks="all", enable_idempotence=False, linger_ms=5
        ) as producer:
            sent = [
                await producer.send(topics.INFERENCES.name, value, key=key)
                for key, value in [*made[:5000], (b"0000", poison), *made[5000:]]
            ]
            await asyncio.gather(*sent)
        await send(kafka_bootstrap, *said)
        failures = await until(lambda: store_fails(client))
        assert "connection refused" in failures["store"]
        assert (await client.get("/scenarios/ten/summary")).status_code == 503

        async def tried_often() -> bool:
            return retries() >= before + 5 * guard.MAX_ATTEMPTS

        await until(tried_often)
        given_up = [
            letter.reason
            for letter in await letters(kafka_bootstrap, topics.INFERENCES, "ten")
            if "event_id" not in letter.reason
        ]
        assert given_up == []
        database.away_now = False
        await until(
            summary(client, "ten", records={"ok": 9_999}, samples={"trainable": 50}), within_s=120
        )
        await until(lambda: ready(client))
    (letter,) = await letters(kafka_bootstrap, topics.INFERENCES, "ten")
    assert "event_id" in letter.reason
    assert len({sample.event_id for sample in await samples_of(kafka_bootstrap, "ten")}) == 50


async def store_fails(client: httpx.AsyncClient) -> Any:
    response = await client.get("/readyz")
    return (
        response.json()["failures"]
        if response.status_code == 503 and response.json()["failures"].get("store")
        else None
    )


async def test_connections_that_are_reset_while_consuming_lose_nothing(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    """E5: the broker's connections are reset again and again under load; the consumer recovers by itself, and each event has one effect."""
    await ensure_topics(kafka_bootstrap)
    made = [inference((user(f"q{n}"),), scenario="reset") for n in range(900)]
    async with (
        proxied(kafka_bootstrap) as proxy,
        running(f"127.0.0.1:{proxy.port}", tmp_path, batch_records=50) as client,
    ):
        await until(lambda: ready(client))
        for start in range(0, 900, 150):
            part = made[start : start + 150]
            await send(
                kafka_bootstrap,
                *part,
                *(report(record.event_id, scenario="reset") for record in part),
            )
            assert proxy.cut() > 0
            await asyncio.sleep(0.1)
        await until(
            summary(
                client,
                "reset",
                records={"ok": 900},
                samples={"trainable": 900},
                reports={"joined": 900},
            )
        )
        await until(lambda: ready(client))
    sent = await samples_of(kafka_bootstrap, "reset")
    assert len({sample.event_id for sample in sent}) == 900
    assert await letters(kafka_bootstrap, topics.INFERENCES, "reset") == []


async def test_lag_that_grows_without_progress_fails_readiness(
    kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E5: something that answers nobody and raises nothing (a store whose call never ends) is seen all the same."""
    monkeypatch.setattr(lifecycle, "STALLED_S", 0.5)
    hold = asyncio.Event()
    async with running(kafka_bootstrap, tmp_path, Held(tmp_path, hold), batch_records=10) as client:
        await until(lambda: ready(client))
        await send(
            kafka_bootstrap, *(inference((user(f"q{n}"),), scenario="stalled") for n in range(100))
        )
        hold.set()
        await send(
            kafka_bootstrap, *(inference((user(f"p{n}"),), scenario="stalled") for n in range(100))
        )

        async def stalled() -> Any:
            return (await client.get("/readyz")).json()["failures"].get("progress")

        assert "none was handled for" in await until(stalled)
        hold.clear()
        await until(summary(client, "stalled", records={"ok": 200}))
        await until(lambda: ready(client))


class Held(Database):
    """chDB whose inserts do not end while it is held."""

    def __init__(self, path: Path, hold: asyncio.Event) -> None:
        plain = Database.embedded(path / "chdb")
        super().__init__(plain._connect, plain.where)
        self.hold = hold

    async def insert(self, table: str, names: Any, columns: Any) -> None:
        while self.hold.is_set():
            await asyncio.sleep(0.02)
        await super().insert(table, names, columns)


async def test_evictions_can_be_seen(kafka_bootstrap: str, tmp_path: Path) -> None:
    """E7: endless untagged traffic that never matches: memory is bounded, and status and metrics say how many sessions were let go."""
    async with running(kafka_bootstrap, tmp_path, max_open_sessions=20) as client:
        await until(lambda: ready(client))
        await send(
            kafka_bootstrap,
            *(inference((user(f"once {n}"),), scenario="endless") for n in range(600)),
        )
        await until(summary(client, "endless", records={"ok": 600}, sessions=600))
        status = (await client.get("/status")).json()["sessions"]
        assert status["open"] <= 20
        assert status["evicted"] >= 580
        shown = (await client.get("/metrics")).text
        assert f"reef_sessions_evicted {float(status['evicted'])}" in shown
