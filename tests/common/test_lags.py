"""How far a consumer is behind: a slow answer is told from none."""

import asyncio
from dataclasses import dataclass, field

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError

from reefcommon.errors import Unavailable
from reefkit.kafka_topics import LagProbe, PartitionLag


@dataclass
class Consumer:
    """A consumer of one partition, whose coordinator answers after `delay_s`."""

    delay_s: float = 0.0
    position: int = 4
    error: Exception | None = None
    asked: int = field(default=0)
    partitions: int = 1

    def assignment(self) -> set[TopicPartition]:
        return {TopicPartition("t", n) for n in range(self.partitions)}

    def highwater(self, _partition: TopicPartition) -> int:
        return 10

    async def committed(self, _partition: TopicPartition) -> int:
        self.asked += 1
        await asyncio.sleep(self.delay_s)
        if self.error is not None:
            raise self.error
        return self.position


def at(position: int) -> list[PartitionLag]:
    return [PartitionLag("t", 0, position, 10)]


async def test_a_slow_answer_is_replaced_by_the_latest_and_still_arrives() -> None:
    probe, consumer = LagProbe(give_up_s=30.0), Consumer()
    assert await probe.rows([consumer], wait_s=1.0, max_age_s=0.0) == at(4)
    consumer.delay_s, consumer.position = 0.2, 9
    assert await probe.rows([consumer], wait_s=0.01, max_age_s=60.0) == at(4)
    with pytest.raises(Unavailable, match=r"no answer within 0\.01 s"):
        await probe.rows([consumer], wait_s=0.01, max_age_s=0.0)
    assert await probe.rows([consumer], wait_s=5.0, max_age_s=0.0) == at(9)
    assert consumer.asked == 2, "callers share one question"


async def test_a_broker_that_says_no_word_for_long_is_away() -> None:
    probe, consumer = LagProbe(give_up_s=0.05), Consumer(delay_s=60.0)
    with pytest.raises(Unavailable, match="TimeoutError"):
        await probe.rows([consumer], wait_s=5.0, max_age_s=60.0)


async def test_an_error_of_the_broker_is_the_reason() -> None:
    probe, consumer = LagProbe(give_up_s=30.0), Consumer(error=KafkaConnectionError("gone"))
    with pytest.raises(Unavailable, match="gone"):
        await probe.rows([consumer], wait_s=5.0, max_age_s=60.0)
    consumer.error = None
    assert await probe.rows([consumer], wait_s=5.0, max_age_s=0.0) == at(4)


async def test_partitions_without_lag_are_not_asked_again_but_for_a_sign_of_life() -> None:
    probe, consumer = LagProbe(give_up_s=30.0), Consumer(position=10, partitions=5)
    for asked in (5, 6, 7):
        rows = await probe.rows([consumer], wait_s=5.0, max_age_s=0.0)
        assert [row.lag for row in rows] == [0] * 5
        assert consumer.asked == asked
    consumer.error = KafkaConnectionError("gone")
    with pytest.raises(Unavailable, match="gone"):
        await probe.rows([consumer], wait_s=5.0, max_age_s=0.0)


async def test_a_partition_that_grew_is_asked_again() -> None:
    probe, consumer = LagProbe(give_up_s=30.0), Consumer(position=10, partitions=2)
    await probe.rows([consumer], wait_s=5.0, max_age_s=0.0)
    consumer.highwater = lambda place: 12 if place.partition else 10
    consumer.position = 11
    rows = await probe.rows([consumer], wait_s=5.0, max_age_s=0.0)
    assert sorted(row.lag for row in rows) == [0, 1]
