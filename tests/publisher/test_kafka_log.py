"""The release log on the real broker."""

from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from reefcommon import topics
from reefcommon.events import ReleaseRejected, utc_now
from reefkit import kafka_offsets
from reefkit.bodies import FilesystemBodies
from reefkit.kafka_topic_log import KafkaTopicLog
from reefkit.kafka_topics import ensure_topics

pytestmark = pytest.mark.broker


async def test_every_event_of_the_last_batch_is_read(
    kafka_bootstrap: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Heads that are rebuilt without the last release would fork the chain. The end that the
    embedded broker names lies one after the beginning of the last batch; a client that gives
    out record by record stands there with the rest of the batch still to come.
    """
    await ensure_topics(kafka_bootstrap, (topics.RELEASES,))
    monkeypatch.setattr(
        kafka_offsets, "AIOKafkaConsumer", partial(AIOKafkaConsumer, max_poll_records=1)
    )
    log = KafkaTopicLog(topics.RELEASES, kafka_bootstrap, FilesystemBodies(tmp_path))
    before = len(await log.read())
    sent: list[str] = []
    async with AIOKafkaProducer(bootstrap_servers=kafka_bootstrap, acks="all") as producer:
        for size in (1, 3, 2):
            batch = producer.create_batch()
            for event in [_event(f"evt-{len(sent) + n}") for n in range(size)]:
                batch.append(key=b"batched", value=event.model_dump_json().encode(), timestamp=None)
                sent.append(event.event_id)
            await (await producer.send_batch(batch, topics.RELEASES.name, partition=0))
            assert [
                event.event_id for event in await log.read() if event.scenario == "batched"
            ] == sent
    assert len(await log.read()) == before + len(sent)


def _event(event_id: str) -> ReleaseRejected:
    return ReleaseRejected(
        event_id=event_id, at=utc_now(), scenario="batched", outcome="rejected", reason="a test"
    )
