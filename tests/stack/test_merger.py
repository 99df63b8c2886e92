"""The merger on the real broker and store: whoever reads, from wherever and meanwhile, reads everything."""

import asyncio
from pathlib import Path

import obstore
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRecord, TopicPartition

from reefcommon import topics
from reefcommon.config import parse
from reefstack import object_store, s3
from reefstack.embedded import Options, embedded_stack
from reefstack.merger.objects import Limits
from reefstack.merger.rounds import Merger
from reefstack.spec import StoreKind

pytestmark = pytest.mark.broker
CONFIG = parse("reef:\n  recipe: recipes.sao.recipe:SAORecipe\nmodel: tiny\n")
PLACE = TopicPartition(topics.SAMPLES.name, 0)
N = 200
Seen = tuple[int, int, bytes | None, bytes | None, tuple[tuple[str, bytes], ...]]


def seen(record: ConsumerRecord) -> Seen:
    return record.offset, record.timestamp, record.key, record.value, tuple(record.headers)


async def write(bootstrap: str, first: int, count: int) -> None:
    """So many objects, one record each."""
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, max_batch_size=64) as producer:
        for n in range(first, first + count, 20):
            headers = [("traceparent", b"00-%d" % n)]
            await asyncio.gather(
                *(
                    producer.send_and_wait(
                        PLACE.topic,
                        b"v" * 40 + b"%d" % m,
                        key=b"k%d" % m,
                        partition=0,
                        headers=headers,
                    )
                    for m in range(n, n + 20)
                )
            )


async def read(bootstrap: str, start: int | None, end: int, group: str | None = None) -> list[Seen]:
    """From an offset, from the beginning, or from where a group has got to, up to an offset; a group's place is kept."""
    found: list[Seen] = []
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        max_poll_records=7,
    )
    async with consumer, asyncio.timeout(120):
        consumer.assign([PLACE])
        if start is not None:
            consumer.seek(PLACE, start)
        while not found or found[-1][0] < end - 1:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                found += [seen(record) for record in records if record.offset < end]
        if group is not None:
            await consumer.commit({PLACE: end})
    return found


@pytest.mark.parametrize("kind", object_store.KINDS)
async def test_readers_see_everything_while_the_log_is_merged(
    tmp_path: Path, kind: StoreKind
) -> None:
    """From the beginning, from the middle of what is merged, and while it is merged; the broker names beginning and end as before."""
    async with embedded_stack(
        CONFIG,
        tmp_path,
        Options(only=frozenset({"kafka"}), default_ports=False, housekeeping_every_s=0, store=kind),
    ) as stack:
        assert stack.log is not None
        store = s3.bucket(stack.log, timeout_s=30)
        await write(stack.kafka_bootstrap, 0, N)
        before = await read(stack.kafka_bootstrap, 0, N)
        assert [record[0] for record in before] == list(range(N))
        assert await read(stack.kafka_bootstrap, None, N // 2, "half-way") == before[: N // 2]
        merger = Merger(store, Limits(keep=16, least=64))
        meanwhile = [
            asyncio.ensure_future(read(stack.kafka_bootstrap, start, N))
            for start in (0, 0, N // 3, N // 2)
        ]
        await asyncio.gather(merger.round(), write(stack.kafka_bootstrap, N, 40))
        for reading in meanwhile:
            assert set(await reading) >= set(before[-(N - N // 2) :])
        assert set(await meanwhile[0]) == set(before)
        path = f"clusters/tansu_cluster/topics/{PLACE.topic}/partitions/0000000000/records/"
        left = [one["path"] async for chunk in obstore.list(store, prefix=path) for one in chunk]
        assert merger.objects == N + 40 - len(left) >= N - 18, (
            "only the first, the whole and the newest are left"
        )
        assert await read(stack.kafka_bootstrap, None, N) == before
        for start in (1, 2, 77, N - 17, N - 16, N - 1):
            assert await read(stack.kafka_bootstrap, start, N) == before[start:]
        assert await read(stack.kafka_bootstrap, None, N, "half-way") == before[N // 2 :]
        async with AIOKafkaConsumer(bootstrap_servers=stack.kafka_bootstrap) as asking:
            assert await asking.beginning_offsets([PLACE]) == {PLACE: 0}
            assert (await asking.end_offsets([PLACE]))[PLACE] > N
