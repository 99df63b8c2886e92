"""The whole service on a real broker and a real store."""

import asyncio
import base64
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from aiokafka import AIOKafkaProducer
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import OperationalError

from reefcommon import events, ids, topics
from reefcommon.settings import SystemSettings
from reefkit.kafka_topics import ensure_topics
from services.experience.app import build
from services.experience.clickhouse import Database
from services.experience.settings import Settings
from tests.experience.factory import assistant, inference, report, user
from tests.replay.reading import everything

pytestmark = [pytest.mark.broker, pytest.mark.store]


@contextlib.asynccontextmanager
async def running(
    bootstrap: str, state_dir: Path, database: Database | None = None, **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """The service in this process; yields a client of its HTTP surface."""
    await ensure_topics(bootstrap)
    app = build(
        SystemSettings(kafka_bootstrap=bootstrap, state_dir=state_dir),
        Settings(**settings),
        database=database,
    )
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://experience") as client,
    ):
        yield client


async def send(bootstrap: str, *sent: events.Event | bytes) -> None:
    """Events as the gateway sends them; bytes go to the inferences as they are."""
    async with AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        acks="all",
        enable_idempotence=False,
        max_request_size=8 * 1024 * 1024,
    ) as producer:
        waits = []
        for event in sent:
            if isinstance(event, bytes):
                waits.append(await producer.send(topics.INFERENCES.name, event, key=b"0000"))
                continue
            topic = (
                topics.FEEDBACK if isinstance(event, events.FeedbackReported) else topics.INFERENCES
            )
            key = (ids.shard_in(event.event_id) or "0000").encode()
            waits.append(
                await producer.send(
                    topic.name, event.model_dump_json(exclude_none=True).encode(), key=key
                )
            )
        await asyncio.gather(*waits)


async def until(check: Callable[[], Any], *, within_s: float = 60.0) -> Any:
    """The first true answer of `check`."""
    async with asyncio.timeout(within_s):
        while not (answer := await check()):
            await asyncio.sleep(0.05)
    return answer


async def read_all(bootstrap: str, topic: str) -> list[bytes]:
    """Everything that lies in a topic now, to its real end."""
    return [record.value for record in await everything(bootstrap, topic)]


def summary(client: httpx.AsyncClient, scenario: str, **expected: Any) -> Callable[[], Any]:
    """A check: the counts of a scenario are these."""

    async def check() -> bool:
        response = await client.get(f"/scenarios/{scenario}/summary")
        return response.status_code == 200 and all(
            response.json()[name] == value for name, value in expected.items()
        )

    return check


async def samples_of(bootstrap: str, scenario: str) -> list[events.SampleReady]:
    # The claim of a large sample of another test has the scenario too, but not the fields.
    values = await read_all(bootstrap, topics.SAMPLES.name)
    return [
        events.SampleReady.model_validate_json(value)
        for value in values
        if orjson.loads(value)["scenario"] == scenario
    ]


async def test_events_become_rows_and_samples_and_poison_in_the_batch_is_dead_alone(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    """E4, the poison: dead with its reason, and the others went through."""
    records = [inference((user(f"q{n}"),), scenario="poison") for n in range(40)]
    poison = b'{"type": "inference.recorded.v1", "scenario": "poison"}'
    reports = [report(record.event_id, scenario="poison") for record in records]
    await ensure_topics(kafka_bootstrap)
    await send(kafka_bootstrap, *records[:20], poison, *records[20:], *reports)
    async with running(kafka_bootstrap, tmp_path) as client:
        await until(
            summary(
                client,
                "poison",
                records={"ok": 40},
                samples={"trainable": 40},
                reports={"joined": 40},
            )
        )
        await until(lambda: ready(client))
        status = (await client.get("/status")).json()
        assert status["sessions"]["open"] >= 40
        assert status["parked_reports"] == 0
    dead = [
        events.DeadLettered.model_validate_json(value)
        for value in await read_all(kafka_bootstrap, topics.INFERENCES.dead)
        if b"event.dead.v1" in value
    ]
    # At least once: a rebalance in between delivers it again, and the letter has the same id then.
    (letter,) = {letter.event_id: letter for letter in dead if letter.scenario == "poison"}.values()
    assert base64.b64decode(letter.value) == poison
    assert "event_id" in letter.reason
    assert {sample.report_id for sample in await samples_of(kafka_bootstrap, "poison")} == {
        said.event_id for said in reports
    }


class Switched(Database):
    """chDB that can be away."""

    away_now = False

    def _work(self, work: Callable[[Client], Any]) -> Any:
        def refuse(_client: Client) -> Any:
            raise OperationalError("connection refused")

        return super()._work(refuse if self.away_now else work)


async def test_a_store_that_is_away_at_the_start_is_waited_for(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    plain = Database.embedded(tmp_path / "chdb")
    database = Switched(plain._connect, plain.where)
    database.away_now = True
    await ensure_topics(kafka_bootstrap)
    await send(kafka_bootstrap, inference(scenario="late-store"))
    async with running(kafka_bootstrap, tmp_path, database) as client:
        while (
            "waits for an outside system"
            not in (await client.get("/readyz")).json()["failures"]["started"]
        ):
            await asyncio.sleep(0.05)
        database.away_now = False
        await until(summary(client, "late-store", records={"ok": 1}))


async def test_a_stop_while_the_store_is_away_ends_in_time_and_loses_nothing(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    plain = Database.embedded(tmp_path / "chdb")
    database = Switched(plain._connect, plain.where)
    async with running(kafka_bootstrap, tmp_path, database) as client:
        await until(lambda: ready(client))
        database.away_now = True
        await send(kafka_bootstrap, inference(scenario="stopped"))
        await until(lambda: not_ready(client))
        begin = time.monotonic()
    assert time.monotonic() - begin < 18  # a supervisor gives it 20
    async with running(kafka_bootstrap, tmp_path) as client:
        await until(summary(client, "stopped", records={"ok": 1}))


async def ready(client: httpx.AsyncClient) -> bool:
    return (await client.get("/readyz")).status_code == 200


async def not_ready(client: httpx.AsyncClient) -> Any:
    response = await client.get("/readyz")
    return (
        response.json()
        if response.status_code == 503 and response.json()["failures"].get("store")
        else None
    )


async def test_outcomes_become_rows(kafka_bootstrap: str, tmp_path: Path) -> None:
    step = events.StepCompleted(
        event_id="job-1", at=events.utc_now(), scenario="outcomes", recipe="sao", step=3, base_release_id="rel-1",
        sample_ids=("smp-1",), metrics={"loss": 0.5}, duration_s=1.5,
    )  # fmt: skip
    refused = events.SampleRefused(
        event_id="ref-1",
        at=events.utc_now(),
        scenario="outcomes",
        recipe="sao",
        sample_id="smp-2",
        reason="stale",
        lag=3,
    )
    await ensure_topics(kafka_bootstrap)
    async with AIOKafkaProducer(
        bootstrap_servers=kafka_bootstrap, acks="all", enable_idempotence=False
    ) as producer:
        for event in (step, refused, step):
            await producer.send_and_wait(
                topics.TRAINING.name, event.model_dump_json().encode(), key=b"outcomes"
            )
        await producer.send_and_wait(topics.TRAINING.name, b"not json", key=b"outcomes")
        await producer.send_and_wait(
            topics.RELEASES.name, published("outcomes").model_dump_json().encode(), key=b"outcomes"
        )
    async with running(kafka_bootstrap, tmp_path) as client:
        await until(
            summary(client, "outcomes", steps=1, refusals={"stale": 1}, releases={"published": 1})
        )
        (row,) = (await client.get("/scenarios/outcomes/steps")).json()["data"]
        assert (row["job_id"], row["metrics"], row["sample_ids"]) == (
            "job-1",
            {"loss": 0.5},
            ["smp-1"],
        )

        async def is_dead() -> bool:  # the rows come first, and the letter before the offset
            values = await read_all(kafka_bootstrap, topics.TRAINING.dead)
            return any(b"not a valid" in value or b"Invalid JSON" in value for value in values)

        await until(is_dead)


def published(scenario: str) -> events.ReleasePublished:
    release = events.Release(
        release_id="rel-2", scenario=scenario, sequence=1, parent_id="rel-1", kind="lora", content_id="c", operation="training",
        load_id="inc:2", created_at=events.utc_now(),
    )  # fmt: skip
    return events.ReleasePublished(
        event_id="rel-2", at=events.utc_now(), scenario=scenario, release=release
    )


@contextlib.asynccontextmanager
async def process(
    bootstrap: str, state_dir: Path, port: int, **more: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The service as it is started for real; killed at the end if it still runs."""
    own = {
        "REEF_KAFKA_BOOTSTRAP": bootstrap,
        "REEF_STATE_DIR": str(state_dir),
        "REEF_EXPERIENCE_URL": f"http://127.0.0.1:{port}",
        "REEF_EXPERIENCE_BATCH_RECORDS": "50",
        "PYTHONPATH": os.pathsep.join(sys.path),
        **more,
    }
    with (state_dir / "log").open("ab") as log:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.experience", env={**os.environ, **own}, stderr=log
        )
        try:
            yield child
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()


async def test_killed_at_any_time_each_event_has_one_effect(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    """E3: killed between insert and commit, wherever that falls; sessions are taken up again and nothing is there twice."""
    await ensure_topics(kafka_bootstrap)
    port = free_port()
    turns: list[Sequence[events.InferenceRecorded]] = [conversation(n) for n in range(150)]
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        for part in range(2):
            async with process(kafka_bootstrap, tmp_path, port) as child:
                await until(lambda: up(client))
                sending = asyncio.create_task(
                    send(kafka_bootstrap, *(turn[part] for turn in turns))
                )
                await until(summary_has(client, 150 * part + 20))
                child.send_signal(signal.SIGKILL)
                await sending
        await send(kafka_bootstrap, *(turn[2] for turn in turns))
        await send(
            kafka_bootstrap,
            *(
                report(*(r.event_id for r in turn), scenario="killed", report_id=f"rep-k{n}")
                for n, turn in enumerate(turns)
            ),
        )
        async with process(kafka_bootstrap, tmp_path, port) as child:
            await until(lambda: up(client))
            await until(
                summary(
                    client,
                    "killed",
                    records={"ok": 450},
                    sessions=150,
                    samples={"trainable": 150},
                    reports={"joined": 150},
                )
            )
            child.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(child.wait(), 20) == 0
        assert "experience_stopped" in (tmp_path / "log").read_text()
    samples = await samples_of(kafka_bootstrap, "killed")
    assert {sample.report_id for sample in samples} == {f"rep-k{n}" for n in range(150)}
    assert len({sample.event_id for sample in samples}) == 150


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def conversation(n: int, scenario: str = "killed") -> Sequence[events.InferenceRecorded]:
    """Three turns."""
    said = [user(f"question {n}")]
    tokens = [n, n + 1]
    turns = []
    for turn in range(3):
        shard = ids.shard_of(scenario, f"question {n}")
        turns.append(
            inference(
                said,
                f"answer {turn}",
                record_id=ids.new_record_id(shard),
                scenario=scenario,
                at=turn,
                prompt=tokens,
                sampled=(7, 8),
            )
        )
        said = [*said, assistant(f"answer {turn}"), user(f"more {turn}")]
        tokens = [*tokens, 7, 8, 9]
    return turns


async def up(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/readyz")).status_code == 200
    except httpx.TransportError:
        return False


def summary_has(
    client: httpx.AsyncClient, records: int, scenario: str = "killed"
) -> Callable[[], Any]:
    async def check() -> bool:
        found = (await client.get(f"/scenarios/{scenario}/summary")).json()
        return found["records"].get("ok", 0) >= records

    return check
