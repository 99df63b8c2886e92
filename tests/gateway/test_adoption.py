"""A gateway that runs relays what another one on the same disk left when it died, before anything that comes later."""

import asyncio
import contextlib
import dataclasses
import time
import uuid
from pathlib import Path

import pytest

from reefcommon import topics
from reefkit.bodies import FilesystemBodies
from reefkit.kafka_topics import ensure_topics
from services.gateway.log.durable import DurableLog
from services.gateway.log.kafka import KafkaRecordLog
from services.gateway.log.spool import Spool
from tests.gateway.test_broker import all_of
from tests.gateway.test_spool import event

pytestmark = pytest.mark.broker


async def test_the_living_relays_what_the_dead_left(kafka_bootstrap: str, tmp_path: Path) -> None:
    topic = dataclasses.replace(topics.INFERENCES, name=f"adopted-{uuid.uuid4().hex[:8]}")
    await ensure_topics(kafka_bootstrap, (topic,))
    broker = KafkaRecordLog(
        kafka_bootstrap,
        FilesystemBodies(tmp_path / "bodies"),
        idempotence=False,
        ack_timeout_s=5.0,
    )
    log = DurableLog(
        broker, Spool(tmp_path, budget_bytes=1 << 24), ready_bytes=1 << 24, ready_age_s=600
    )
    await log.spool.open()
    tasks = [asyncio.create_task(log.run()), asyncio.create_task(log.watch())]
    dead = Spool(tmp_path, budget_bytes=1 << 24)
    await dead.open()
    try:
        await log.back(30)
        assert log.direct
        await log.append(event(0)._replace(topic=topic.name, data=b"0 direct"))
        for number in (1, 2, 3):
            await dead.append(
                event(number)._replace(topic=topic.name, data=f"{number} left".encode())
            )
        await log.adopt()
        assert log.direct, "its owner lives"
        await dead.close()
        await log.adopt()
        assert not log.direct
        assert log.spool.records == 3
        await log.append(event(0)._replace(topic=topic.name, data=b"4 later"))
        deadline = time.monotonic() + 60
        while not log.direct:
            assert time.monotonic() < deadline, log.describe()
            await asyncio.sleep(0.05)
        await log.append(event(0)._replace(topic=topic.name, data=b"5 direct"))
        assert [value for _, _, value in await all_of(kafka_bootstrap, topic)] == [
            b"0 direct", b"1 left", b"2 left", b"3 left", b"4 later", b"5 direct",
        ]  # fmt: skip
        assert log.relayed == 4
        assert list((tmp_path / "1").glob("spool.db*")) == []
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await broker.stop()
        await dead.close()
        await log.spool.close()
