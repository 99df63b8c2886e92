"""The tail reads the partitions that the broker has, and waits for a missing topic."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from aiokafka import TopicPartition

from reefcommon import topics
from reefkit.bodies import FilesystemBodies
from services.gateway.log import release_tail
from services.gateway.log.release_tail import ReleaseTail


class Consumer:
    """A consumer on a broker with these partitions; nothing new ever comes."""

    there: dict[str, set[int]]
    assigned: list[TopicPartition]

    def __init__(self, **_: Any) -> None:
        pass

    async def start(self) -> None:
        pass

    async def stop(self) -> None:
        pass

    async def topics(self) -> set[str]:
        return set(self.there)

    def partitions_for_topic(self, name: str) -> set[int] | None:
        return self.there.get(name)

    def assign(self, places: list[TopicPartition]) -> None:
        type(self).assigned = places

    async def seek_to_end(self, *_places: TopicPartition) -> None:
        pass

    async def position(self, _place: TopicPartition) -> int:
        return 0

    async def beginning_offsets(self, places: list[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(places, 0)

    def seek(self, _place: TopicPartition, _offset: int) -> None:
        pass

    async def getmany(self, timeout_ms: int) -> dict[TopicPartition, list[Any]]:
        await asyncio.sleep(timeout_ms / 1000)
        return {}


@pytest.mark.parametrize("count", [1, 4])
async def test_every_partition_of_the_broker_is_followed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int
) -> None:
    broker = type("Broker", (Consumer,), {"there": {topics.RELEASES.name: set(range(count))}})
    monkeypatch.setattr(release_tail, "AIOKafkaConsumer", broker)
    tail = ReleaseTail("kafka:9092", None, FilesystemBodies(tmp_path))  # type: ignore[arg-type]

    async def snapshot() -> None:
        pass

    running = asyncio.create_task(tail.run(snapshot, lambda *_: None, every_s=60.0))
    try:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(tail.listening.wait(), 0.2)
        broker.there[topics.TRAINING.name] = {0, 1}
        await asyncio.wait_for(tail.listening.wait(), 30)
    finally:
        running.cancel()
    found = {(place.topic, place.partition) for place in broker.assigned}
    assert found == {
        *((topics.RELEASES.name, n) for n in range(count)),
        *((topics.TRAINING.name, n) for n in range(2)),
    }
