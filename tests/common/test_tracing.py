"""Traces go on across the bus, also through batches."""

import asyncio
import uuid
from datetime import timedelta

import pytest
from aiokafka import AIOKafkaProducer
from faststream.kafka import KafkaRouter
from faststream.kafka.opentelemetry import KafkaTelemetryMiddleware
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from reefcommon import events
from reefcommon.settings import SystemSettings
from reefcommon.topics import Topic
from reefkit import bus
from reefkit.bus import KafkaPublisher, kafka_broker, route
from reefkit.kafka_topics import ensure_topics
from tests.replay.reading import everything

pytestmark = pytest.mark.broker

TRACES = [f"{number:032x}" for number in (0xA1, 0xB2)]


def command(number: int, trace: str) -> events.ScenarioCreateRequested:
    return events.ScenarioCreateRequested(
        event_id=f"c{number}",
        at=events.utc_now(),
        scenario="s",
        traceparent=f"00-{trace}-00000000000000ff-01",
    )


@pytest.fixture
async def topic(kafka_bootstrap: str) -> Topic:
    name = f"test.traces.{uuid.uuid4().hex[:8]}"
    kinds = (events.ScenarioCreateRequested,)
    made = Topic(name, kinds, (), (), "a test", partitions=1, retention=timedelta(days=1))
    await ensure_topics(kafka_bootstrap, (made,))
    return made


async def test_a_batch_is_linked_to_the_trace_of_each_message(
    kafka_bootstrap: str, topic: Topic, monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    """The producer need not be FastStream: a `traceparent` is enough."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(
        bus, "KafkaTelemetryMiddleware", lambda: KafkaTelemetryMiddleware(tracer_provider=provider)
    )
    monkeypatch.setattr(bus, "GRACEFUL_STOP_S", 0.5)
    seen: list[str] = []

    async def many(batch: list[events.ScenarioCreateRequested]) -> None:
        seen.extend(event.event_id for event in batch)

    async with AIOKafkaProducer(bootstrap_servers=kafka_bootstrap) as producer:
        for number, trace in enumerate(TRACES):
            event = command(number, trace)
            headers = [("traceparent", event.traceparent.encode())]
            value = event.model_dump_json().encode()
            await producer.send_and_wait(topic.name, value, partition=0, headers=headers)
    settings = SystemSettings(kafka_bootstrap=kafka_bootstrap, state_dir=tmp_path)
    broker = kafka_broker(settings, "test")
    row = route(many, topic, group=topic.name, batch=True)
    broker.include_router(KafkaRouter(handlers=(row,)))
    async with broker:
        await broker.start()
        async with asyncio.timeout(20):
            while len(seen) < 2:
                await asyncio.sleep(0.02)
    linked = {
        f"{link.context.trace_id:032x}"
        for span in exporter.get_finished_spans()
        for link in span.links
    }
    assert linked == set(TRACES)


async def test_an_event_that_comes_of_an_exchange_continues_its_trace(
    kafka_bootstrap: str, topic: Topic, tmp_path
) -> None:
    settings = SystemSettings(kafka_bootstrap=kafka_bootstrap, state_dir=tmp_path)
    broker = kafka_broker(settings, "test")
    await broker.connect()
    for number, trace in enumerate(TRACES):
        await KafkaPublisher(broker).publish(command(number, trace), topic)
    await broker.stop()
    parents = [
        dict(record.headers)["traceparent"].decode()
        for record in await everything(kafka_bootstrap, topic.name)
    ]
    assert [parent.split("-")[1] for parent in parents] == TRACES
