"""The lag gauge: what Prometheus sees is what `/status` says, and nothing stays behind from partitions that went elsewhere."""

from dataclasses import dataclass
from datetime import datetime

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError
from starlette.applications import Starlette
from starlette.testclient import TestClient

from reefcommon.settings import SystemSettings
from reefkit.bus import kafka_broker
from reefkit.kafka_topics import LagProbe
from reefkit.ops import Health, ops_routes


class Consumer:
    """A consumer that has committed up to `committed` of `end` in every partition."""

    def __init__(self, topic: str, end: int, committed: int) -> None:
        self.topic, self.end, self.at = topic, end, committed
        self.partitions = {TopicPartition(topic, 0), TopicPartition(topic, 1)}
        self.broken = False

    def assignment(self):
        return self.partitions

    def highwater(self, _partition):
        return self.end

    async def committed(self, _partition):
        if self.broken:
            raise KafkaConnectionError("away")
        return self.at


@dataclass
class Subscriber:
    consumer: Consumer


class Broker:
    def __init__(self, consumer: Consumer) -> None:
        self.subscribers = [Subscriber(consumer)]
        self.lag_probe = LagProbe(30.0)
        self.guard = kafka_broker(SystemSettings(), "trainer").guard


@pytest.fixture
def consumer():
    return Consumer("reef.samples.v1", end=10, committed=4)


@pytest.fixture
def client(consumer):
    return TestClient(Starlette(routes=ops_routes(Health("trainer", broker=Broker(consumer)))))


SERIES = 'reef_consumer_lag_events{service="trainer",topic="reef.samples.v1"}'


def test_lag_is_summed_over_the_partitions(client):
    assert f"{SERIES} 12.0" in client.get("/metrics").text
    assert client.get("/status").json()["lag"] == {"reef.samples.v1": 12}


def test_a_topic_that_went_to_another_process_is_no_longer_counted_here(client, consumer):
    assert SERIES in client.get("/metrics").text
    consumer.partitions = set()
    assert SERIES not in client.get("/metrics").text


def test_an_unknown_lag_is_absent_and_not_zero(client, consumer):
    consumer.broken = True
    answer = client.get("/metrics")
    assert answer.status_code == 200
    assert SERIES not in answer.text
    assert "away" in client.get("/status").json()["last_error"]


def test_an_error_that_is_over_has_its_time_and_the_wait_at_the_start_is_none():
    wrong: list[str] = ["not started yet"]
    health = Health("trainer")

    async def check() -> str | None:
        return wrong[0] if wrong else None

    health.checks["started"] = check
    client = TestClient(Starlette(routes=ops_routes(health)))
    assert client.get("/status").json()["last_error"] == "started: not started yet"
    wrong.clear()
    assert client.get("/readyz").status_code == 200
    status = client.get("/status").json()
    assert (status["last_error"], status["last_error_at"]) == (None, None)
    wrong.append("the broker is away")
    seen = client.get("/status").json()["last_error_at"]
    wrong.clear()
    over = client.get("/status").json()
    assert (over["failures"], over["last_error"]) == ({}, "started: the broker is away")
    assert over["last_error_at"] == seen
    assert datetime.fromisoformat(seen).tzinfo is not None


def test_metrics_of_a_service_without_a_broker_are_served():
    health = Health("engine")
    assert TestClient(Starlette(routes=ops_routes(health))).get("/metrics").status_code == 200
