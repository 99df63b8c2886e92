"""The release log on the real broker."""

import asyncio

import pytest
from aiokafka import AIOKafkaProducer

from reefcommon import topics
from reefcommon.bus import ensure_topics
from reefcommon.events import ReleaseRejected, utc_now
from services.publisher.kafka_log import KafkaReleaseLog

pytestmark = pytest.mark.broker


async def test_every_event_is_read_however_they_were_batched(kafka_bootstrap: str) -> None:
    """Heads that are rebuilt without the last release would fork the chain: the end that the broker names may be too low."""
    await ensure_topics(kafka_bootstrap, (topics.RELEASES,))
    log = KafkaReleaseLog(kafka_bootstrap)
    before = len(await log.read())
    sent: list[str] = []
    async with AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, acks="all", linger_ms=50) as producer:
        for size in (1, 3, 2, 1):
            events = [_event(f"evt-{len(sent) + n}") for n in range(size)]
            body = [event.model_dump_json().encode() for event in events]
            await asyncio.gather(*(producer.send_and_wait(topics.RELEASES.name, one, key=b"batched") for one in body))
            sent += [event.event_id for event in events]
            read = [event.event_id for event in await log.read() if event.scenario == "batched"]
            assert read == sent
    assert len(await log.read()) == before + len(sent)


def _event(event_id: str) -> ReleaseRejected:
    return ReleaseRejected(event_id=event_id, at=utc_now(), scenario="batched", outcome="rejected", reason="a test")
