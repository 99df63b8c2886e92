"""Consumers without a group, and the ends of the log."""

import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition

from reefcommon.errors import Unavailable

FETCH_WITHIN_S = 60.0


@asynccontextmanager
async def open_consumer(bootstrap: str, **options: Any) -> AsyncIterator[AIOKafkaConsumer]:
    """Start a consumer that commits no offsets, and stop it on leaving. Raises KafkaError."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False, **options)
    try:
        await consumer.start()
        yield consumer
    finally:
        await consumer.stop()


async def real_ends(bootstrap: str, names: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    """Return the end of each partition, by topic; empty for a missing topic.

    Raises:
        KafkaError: the broker does not answer.
        Unavailable: the broker has records that it does not give.
    """
    # The end that a broker names may be too low: the embedded broker names the offset after the
    # beginning of the last batch. The high-water mark of a fetch is right.
    async with open_consumer(bootstrap) as consumer:
        await consumer.topics()
        numbers = {name: sorted(consumer.partitions_for_topic(name) or ()) for name in names}
        places = {name: [TopicPartition(name, n) for n in found] for name, found in numbers.items()}
        every = [place for found in places.values() for place in found]
        if not every:
            return {name: {} for name in names}
        begins, ends = await consumer.beginning_offsets(every), await consumer.end_offsets(every)
        filled = [place for place in every if ends[place] > begins[place]]
        consumer.assign(filled)
        for place in filled:
            consumer.seek(place, ends[place] - 1)
        deadline = time.monotonic() + FETCH_WITHIN_S
        while unknown := [place for place in filled if consumer.highwater(place) is None]:
            if time.monotonic() > deadline:
                topic, waited = unknown[0].topic, f"{FETCH_WITHIN_S:.0f} s"
                raise Unavailable(f"{bootstrap} gives no record of {topic} for {waited}")
            await consumer.getmany(*unknown, timeout_ms=200)
        ends |= {place: max(ends[place], consumer.highwater(place) or 0) for place in filled}
        return {name: {place: ends[place] for place in found} for name, found in places.items()}
