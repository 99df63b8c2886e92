"""The shared fixtures give a broker and a store that work."""

import uuid

import pytest
import redis.asyncio
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from reefcommon import topics
from reefkit.kafka_topics import ensure_topics


@pytest.mark.broker
async def test_the_shared_broker_takes_the_registry_and_keeps_an_event(
    kafka_bootstrap: str,
) -> None:
    await ensure_topics(kafka_bootstrap)
    value = uuid.uuid4().hex.encode()
    async with AIOKafkaProducer(
        bootstrap_servers=kafka_bootstrap, acks="all", enable_idempotence=False
    ) as producer:
        await producer.send_and_wait(topics.COMMANDS.name, value, key=b"default")
    consumer = AIOKafkaConsumer(
        topics.COMMANDS.name, bootstrap_servers=kafka_bootstrap, auto_offset_reset="earliest"
    )
    async with consumer:
        seen = []
        while value not in seen:
            seen += [
                r.value for rows in (await consumer.getmany(timeout_ms=5000)).values() for r in rows
            ]
    assert await ensure_topics(kafka_bootstrap) == []


@pytest.mark.redis
async def test_the_shared_store_syncs_every_write(redis_url: str) -> None:
    async with redis.asyncio.Redis.from_url(redis_url) as client:
        assert (await client.config_get("appendfsync"))["appendfsync"] == "always"
