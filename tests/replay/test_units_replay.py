"""Units and signals read from the log again are equal; a planted difference is named."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from reefcommon import events, ids, topics
from reefcommon.settings import SystemSettings
from services.experience.app import build
from services.experience.clickhouse import Database
from services.experience.settings import Settings
from tests.experience.factory import T0
from tests.experience.test_broker import until
from tests.experience.test_turns import traffic
from tests.gateway.conftest import serving
from tests.replay.system import System
from tests.replay.test_replay import change, here, places

pytestmark = [pytest.mark.broker, pytest.mark.store, pytest.mark.redis]

SERVE = """reef:
- recipe: tests.experience.test_wants:Turns
- recipe: tests.experience.test_wants:Sessions
model: tiny
"""
MARKS = "SELECT countIf(state = 'open') AS open, count() AS n FROM turns FINAL"


@contextlib.asynccontextmanager
async def experience(system: System, config: Path) -> AsyncIterator[Database]:
    database = Database.embedded(system.state_dir / "chdb")
    bus = SystemSettings(
        kafka_bootstrap=system.stack.kafka_bootstrap, state_dir=system.state_dir, config=config
    )
    app = build(bus, Settings(sweep_every_s=0.3), database=database)
    async with serving(app) as url:
        system.stack.urls["experience"] = url
        yield database


async def sent(system: System) -> int:
    """Sessions of every kind in four shards, and signals; returns the number of exchanges."""
    age = events.utc_now() - timedelta(hours=2) - T0
    async with AIOKafkaProducer(
        bootstrap_servers=system.stack.kafka_bootstrap, acks="all", enable_idempotence=False
    ) as producer:
        names = set()
        for shard in range(4):
            for event in traffic(random.Random(shard), 40):
                name = f"{event.event_id}-{shard}"
                tag = event.session_tag and f"{event.session_tag}-{shard}"
                new = {"event_id": name, "at": event.at + age, "session_tag": tag}
                moved = event.model_copy(update=new)
                body, key = moved.model_dump_json(exclude_none=True), ids.shard_of("s", str(shard))
                at = int(moved.at.timestamp() * 1000)
                await producer.send(topics.INFERENCES.name, body.encode(), key=key.encode(), timestamp_ms=at)  # fmt: skip
                names.add(name)
        for number in range(20):
            signal = events.Signal(score=float(number), words="w") if number % 5 else None
            said = events.SignalComputed(
                event_id=f"sig-{number}", at=events.utc_now(), scenario="default", recipe="r",
                unit_id=f"unt-{number}", signal=signal,
            )  # fmt: skip
            await producer.send(
                topics.SIGNALS.name, said.model_dump_json().encode(), key=b"default"
            )
        await producer.flush()
    return len(names)


async def test_units_and_signals_are_equal_after_a_replay(tmp_path: Path) -> None:
    async with here(tmp_path) as system:
        exchanges = await sent(system)
        config = tmp_path / "serve.yaml"
        config.write_text(SERVE)
        async with experience(system, config) as database:

            async def done() -> bool:
                await asyncio.sleep(0.4)  # a query of the store costs CPU
                if database.away:
                    return False
                (found,) = await database.query(MARKS)
                return bool(found["n"] == exchanges and not found["open"])

            await until(done, within_s=120)
            await asyncio.sleep(1)
            code, found, said = await system.replay(*places(system))
            assert (code, found.get("different"), found.get("differences")) == (0, {}, []), said
            assert found["rows"]["units"] == found["units_made"] > exchanges
            assert found["rows"]["signals"] == 20

            (one,) = await database.query(
                "SELECT unit_id FROM units FINAL ORDER BY unit_id LIMIT 1"
            )
            unit = one["unit_id"]
            await change(database, f"ALTER TABLE units UPDATE ended = 'x' WHERE unit_id = '{unit}'")
            await change(database, "ALTER TABLE signals DELETE WHERE signal_id = 'sig-3'")
            code, found, said = await system.replay(*places(system))
            assert code == 3, said
            told = {(row["table"], row["id"]): row["kind"] for row in found["differences"]}
            assert told == {("units", unit): "differs", ("signals", "sig-3"): "missing"}
