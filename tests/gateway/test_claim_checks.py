"""Events that the broker finds too large travel as claim checks, new and spooled, in order."""

import asyncio
import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiokafka.errors import MessageSizeTooLargeError, RecordListTooLargeError

from reefkit.bodies import CLAIM_HEADER, FilesystemBodies, whole_value
from services.gateway.domain.log_event import LogEvent
from services.gateway.log.kafka import EventRefused, KafkaRecordLog
from services.gateway.ports import NotDurable


@dataclass
class Commits:
    """GroupCommit in memory, of a broker that takes messages of at most `limit` bytes."""

    limit: int
    error: type[Exception] = MessageSizeTooLargeError
    sent: list[tuple[bytes, dict[str, bytes]]] = field(default_factory=list)

    def put(self, event: LogEvent, headers: Any) -> asyncio.Future[None]:
        done = asyncio.get_running_loop().create_future()
        if len(event.data) > self.limit:
            done.set_exception(self.error())
        else:
            self.sent.append((event.data, dict(headers)))
            done.set_result(None)
        return done


def log_of(commits: Commits, root: Path) -> KafkaRecordLog:
    log = KafkaRecordLog("nowhere:1", FilesystemBodies(root), idempotence=True, ack_timeout_s=2.0)
    log.away, log._commits = None, commits  # type: ignore[assignment]
    return log


def event(name: str, size: int) -> LogEvent:
    data = orjson.dumps({"type": "t.v1", "event_id": name, "fill": "x" * size})
    return LogEvent("t", "s0", name, data, 1.0, "00-a-b-01")


async def read_back(commits: Commits, root: Path) -> list[str]:
    bodies = FilesystemBodies(root)
    values = [
        await whole_value(data, list(headers.items()), bodies) for data, headers in commits.sent
    ]
    return [orjson.loads(value)["event_id"] for value in values]


@pytest.mark.parametrize("size", [950_000, 20_000_000])
async def test_a_large_event_is_not_sent_whole(tmp_path: Path, size: int) -> None:
    commits, large = Commits(limit=1_000_000), event("large", size)
    await log_of(commits, tmp_path).append(large)
    ((data, headers),) = commits.sent
    assert len(data) < 300
    assert orjson.loads(headers[CLAIM_HEADER])["sha256"] == hashlib.sha256(large.data).hexdigest()
    assert (headers["correlation_id"], headers["traceparent"]) == (b"large", b"00-a-b-01")
    assert await read_back(commits, tmp_path) == ["large"]


@pytest.mark.parametrize("error", [MessageSizeTooLargeError, RecordListTooLargeError])
async def test_a_broker_with_a_smaller_limit_gets_claim_checks(
    tmp_path: Path, error: type[Exception]
) -> None:
    commits = Commits(limit=50_000, error=error)
    log = log_of(commits, tmp_path)
    await log.append(event("a", 60_000))
    await log.append_all([event("b", 10), event("c", 400_000), event("d", 51_000)])
    assert await read_back(commits, tmp_path) == ["a", "b", "c", "d"]
    assert log.waiting == 0


async def test_spooled_events_keep_their_order_around_a_large_one(tmp_path: Path) -> None:
    commits = Commits(limit=1_000_000)
    sizes = (10, 1_500_000, 10, 3_000_000, 950_000, 10)
    await log_of(commits, tmp_path).append_all([event(str(n), s) for n, s in enumerate(sizes)])
    assert await read_back(commits, tmp_path) == ["0", "1", "2", "3", "4", "5"]


async def test_a_body_store_that_fails_is_not_durable(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    log = log_of(Commits(limit=1_000_000), tmp_path / "file")
    with pytest.raises(NotDurable) as raised:
        await log.append_all([event("a", 2_000_000)])
    assert not isinstance(raised.value, EventRefused)


async def test_a_broker_that_refuses_the_claim_too_has_refused(tmp_path: Path) -> None:
    with pytest.raises(EventRefused):
        await log_of(Commits(limit=10), tmp_path).append(event("a", 100))
