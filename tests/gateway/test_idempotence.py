"""The producer's setting of production, against a door that gives it what the embedded broker lacks."""

import asyncio
import contextlib
import gc
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiokafka.producer.sender import SendProduceReqHandler

from reefcommon import topics
from reefkit import kafka_sequences
from reefkit.bodies import FilesystemBodies
from reefkit.kafka_topics import ensure_topics
from services.gateway.domain.log_event import LogEvent
from services.gateway.log import kafka
from services.gateway.log.kafka import KafkaRecordLog
from services.gateway.ports import NotDurable
from tests.bench.idempotent import OUT_OF_ORDER, TOO_LARGE, Door

pytestmark = pytest.mark.broker
PRODUCER = 1


@contextlib.asynccontextmanager
async def opened(bootstrap: str, root: Path) -> AsyncIterator[tuple[Door, KafkaRecordLog]]:
    await ensure_topics(bootstrap)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = int(listener.getsockname()[1])
    door = Door(port, bootstrap, keep=True)
    async with await door.serve():
        log = KafkaRecordLog(
            f"127.0.0.1:{port}",
            FilesystemBodies(root),
            idempotence=True,
            ack_timeout_s=5.0,
        )
        await log.connect()
        try:
            yield door, log
        finally:
            await log.stop()


def event(number: int) -> LogEvent:
    return LogEvent(topics.FEEDBACK.name, f"{number % 9:04x}", f"r-{number}", b"{}", 1.0)


async def test_sequences_have_no_gap_and_no_overlap(kafka_bootstrap: str, tmp_path: Path) -> None:
    """Events join while batches are under way: each is counted once, in its own batch."""
    async with opened(kafka_bootstrap, tmp_path) as (door, log):

        async def client(first: int) -> None:
            for number in range(first, first + 50):
                await log.append(event(number))

        await asyncio.gather(*(client(50 * n) for n in range(16)))
    expected: dict[int, int] = {}
    for _, partition, producer, sequence, count in door.batches:
        assert (producer, sequence) == (PRODUCER, expected.get(partition, 0))
        expected[partition] = sequence + count
    assert sum(expected.values()) == 800


@pytest.mark.parametrize("lost", [1, 3])
async def test_a_lost_acknowledgement_repeats_the_same_sequence(
    kafka_bootstrap: str, tmp_path: Path, lost: int
) -> None:
    """The broker knows the repeat by it, so the event is in the log once."""
    async with opened(kafka_bootstrap, tmp_path) as (door, log):
        await log.append(event(0))
        door.swallow = lost
        await log.append(event(0))
        await log.append(event(0))
    assert [row[3] for row in door.batches] == [0, *[1] * (lost + 1), 2]


@pytest.fixture
def mended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        SendProduceReqHandler, "do", SendProduceReqHandler.do
    )  # put back at the end
    kafka_sequences.mend()


@pytest.mark.usefixtures("mended")
@pytest.mark.parametrize("code", [OUT_OF_ORDER, TOO_LARGE, None])
async def test_a_refused_batch_refuses_no_later_event(
    kafka_bootstrap: str, tmp_path: Path, code: int | None
) -> None:
    """The broker forgets its producers (None), or a limit of its own refuses: the next has a new id."""
    async with opened(kafka_bootstrap, tmp_path) as (door, log):
        await asyncio.gather(log.append(event(0)), log.append(event(1)))
        if code is None:
            door.known.clear()
        else:
            door.refusals.append(code)
        if code == TOO_LARGE:  # it goes again with a claim check
            await log.append(event(0))
        else:
            with pytest.raises(NotDurable, match="OutOfOrderSequenceNumber"):
                await log.append(event(0))
        for number in range(3):
            await log.append(event(number))
        assert {row[2] for row in door.batches[-3:]} == {2}


async def test_a_broker_that_never_answers_does_not_keep_it_from_stopping(
    kafka_bootstrap: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "STOP_TIMEOUT_S", 0.5)
    async with opened(kafka_bootstrap, tmp_path) as (door, log):
        door.swallow = 1_000_000
        waiting = asyncio.create_task(log.append(event(0)))
        while len(door.batches) < 2:
            await asyncio.sleep(0.01)
        log.let_go("away, as asked")
        with pytest.raises(NotDurable):
            await waiting
        async with asyncio.timeout(20):
            await log.stop()
        sent = len(door.batches)
        await asyncio.sleep(0.5)
        assert len(door.batches) == sent, "it has ended"
        door.swallow = 0
        await log.connect()
        await log.append(event(1))
    gc.collect()  # the abandoned producer goes here, not in the middle of a later test
