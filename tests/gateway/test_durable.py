"""The switch between broker and disk, with the broker in the test's hands: what was acknowledged is in the log, once it is back, in order."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from services.gateway.domain.log_event import LogEvent
from services.gateway.log import durable
from services.gateway.log.durable import DurableLog
from services.gateway.log.kafka import EventRefused
from services.gateway.log.spool import Spool
from services.gateway.log.spool_file import Portion, SpoolFile
from services.gateway.ports import NotDurable


@dataclass
class Broker:
    """KafkaRecordLog in memory. `up`: it answers; `never`: events that it refuses; `gate`: sends wait for it."""

    log: list[bytes] = field(default_factory=list)
    up: bool = True
    never: frozenset[bytes] = frozenset()
    gate: asyncio.Event | None = None
    waiting: int = 0
    away: str | None = None
    sends: list[int] = field(default_factory=list)
    connects: int = 0
    silent: str | None = None

    def _answer(self, event: bytes = b"") -> None:
        if not self.up:
            raise NotDurable("away, as asked")
        if event in self.never:
            raise EventRefused("refused, as asked")

    async def connect(self) -> None:
        self.connects += 1
        self._answer()
        self.away = None

    async def append(self, event: LogEvent) -> None:
        self._answer(event.data)
        self.log.append(event.data)

    async def append_all(self, events: Sequence[LogEvent]) -> None:
        self.sends.append(len(events))
        if self.gate is not None:
            await self.gate.wait()
        for event in events:
            await self.append(event)

    def let_go(self, reason: str) -> None:
        self.away = reason

    async def gone(self) -> str | None:
        return self.silent

    async def missing_topics(self) -> str | None:
        self._answer()
        return None


@contextlib.asynccontextmanager
async def opened(
    root: Path, broker: Broker, *, ready_bytes: int = 1 << 20, ready_age_s: float = 600
) -> AsyncIterator[DurableLog]:
    log = DurableLog(
        broker, Spool(root, budget_bytes=1 << 24), ready_bytes=ready_bytes, ready_age_s=ready_age_s
    )  # type: ignore[arg-type]
    await log.spool.open()
    try:
        yield log
    finally:
        await log.spool.close()


@contextlib.asynccontextmanager
async def running(log: DurableLog) -> AsyncIterator[None]:
    """Relaying, and nothing takes for ever."""
    task = asyncio.create_task(log.run())
    try:
        async with asyncio.timeout(60):
            yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def until(what: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not what():
            await asyncio.sleep(0.001)


def made(data: bytes, at: float | None = None) -> LogEvent:
    return LogEvent("t", "s0", "r", data, time.time() if at is None else at)


async def put(log: DurableLog, *events: bytes) -> None:
    for event in events:
        await log.append(made(event))


async def test_what_the_broker_does_not_take_is_spooled_and_relayed_before_what_comes_later(
    tmp_path: Path,
) -> None:
    """The one that failed, all that came while it was away, and then the next ones directly; while it is away nobody asks it."""
    broker = Broker()
    async with opened(tmp_path, broker) as log, running(log):
        await until(lambda: log.direct)
        await put(log, b"0")
        assert (log.waiting_since(), log.refusal(), log.describe()["mode"]) == (
            None,
            None,
            "direct",
        )
        broker.up, before = False, time.time()
        await put(log, b"1", b"2")
        assert broker.away == "away, as asked"
        assert (log.direct, log.spool.records, log.describe()["mode"]) == (False, 2, "spooling")
        assert before <= (log.waiting_since() or 0) <= time.time()
        log.spool._refuse("full, as asked")
        assert log.refusal() == await log.failure() == "full, as asked"
        log.spool._refused_until = 0
        broker.up = True
        await put(log, b"3")
        await until(lambda: log.direct)
        await put(log, b"4")
        assert broker.log == [b"0", b"1", b"2", b"3", b"4"]
        assert (log.relayed, log.waiting_since(), log.spool.idle) == (3, None, True)


async def test_an_event_that_is_refused_is_its_callers(tmp_path: Path) -> None:
    broker = Broker(never=frozenset({b"never"}))
    async with opened(tmp_path, broker) as log, running(log):
        await until(lambda: log.direct)
        with pytest.raises(EventRefused):
            await put(log, b"never")
        assert (log.direct, log.spool.records) == (True, 0)


async def test_nothing_leaves_the_disk_before_the_broker_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fails in the middle, and the disk cannot be read once: all of it is sent again, by the same loop."""
    monkeypatch.setattr(durable, "FIRST_DELAY_S", 0.001)
    broker, read, failures = Broker(up=False), SpoolFile.read, [OSError("not now, as asked")]

    def failing(file: SpoolFile, limit: int) -> Portion:
        if failures:
            raise failures.pop()
        return read(file, limit)

    async with opened(tmp_path, broker) as log:
        await put(log, b"0", b"1")
        broker.up, broker.gate = True, asyncio.Event()
        async with running(log):
            await until(lambda: broker.sends)
            assert log.spool.records == 2
            assert (Path(log.spool.directory) / "spool.db").exists()
            broker.up = False
            broker.gate.set()
            await until(lambda: broker.connects > 1)
            assert log.spool.records == 2
            monkeypatch.setattr(SpoolFile, "read", failing)
            broker.up = True
            await until(lambda: log.direct)
        assert not failures
        assert broker.log[-2:] == [b"0", b"1"]


async def test_it_is_not_asked_directly_while_anything_is_still_on_its_way(tmp_path: Path) -> None:
    """What an earlier request holds may arrive any moment: events that came later would overtake it."""
    broker = Broker(waiting=1)
    async with opened(tmp_path, broker) as log:
        assert not log._return()
        await put(log, b"0")
        broker.waiting = 0
        assert not log._return(), "one waits on the disk"
        async with running(log):
            await until(lambda: log.direct)


@pytest.mark.parametrize("fails", [False, True])
async def test_the_last_of_them_are_not_overtaken(tmp_path: Path, fails: bool) -> None:
    """New events wait while the last are relayed, but only for a broker that has shown that it takes them; then they go directly, or to
    the disk behind the others where it went away after all."""
    broker, log_gate = Broker(up=False), asyncio.Event()
    async with opened(tmp_path, broker) as log:
        await put(log, b"0", b"1")
        broker.up, broker.gate = True, log_gate
        async with running(log):
            await until(lambda: len(broker.sends) == 1)
            await put(log, b"2")  # not shown yet: this one does not wait
            broker.gate = asyncio.Event()
            log_gate.set()
            await until(lambda: len(broker.sends) == 2)
            late = asyncio.create_task(put(log, b"3"))
            await asyncio.sleep(0.02)
            assert (late.done(), log.spool.records) == (False, 1)
            broker.up = not fails
            broker.gate.set()
            await late
            assert log.direct is not fails
            broker.up = True
            await until(lambda: log.direct)
    assert broker.log == [b"0", b"1", b"2", b"3"]


async def test_readiness_ends_with_too_much_or_for_too_long(tmp_path: Path) -> None:
    broker = Broker(up=False)
    async with opened(tmp_path / "bytes", broker, ready_bytes=500) as log:
        await put(log, b"x")
        assert await log.failure() is None
        await put(log, b"x" * 500)
        assert "2 events" in (await log.failure() or "")
    async with opened(tmp_path / "age", broker, ready_age_s=30) as log:
        await log.spool.append(made(b"x", time.time() - 29))
        assert await log.failure() is None
    async with opened(tmp_path / "older", broker, ready_age_s=30) as log:
        await log.spool.append(made(b"x", time.time() - 31))
        assert "the oldest 31 s" in (await log.failure() or "")


async def test_what_the_dead_left_comes_before_what_comes_now(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked for every now and then; a disk that fails then is looked at again; the broker is not let go, since it is not away."""
    monkeypatch.setattr(durable, "WATCH_EVERY_S", 0.001)
    monkeypatch.setattr(durable, "ADOPT_EVERY_S", 0.0)
    broker, adopt = Broker(), Spool.adopt
    failures: list[OSError] = []

    async def failing(spool: Spool) -> int:
        if failures:
            raise failures.pop()
        return await adopt(spool)

    monkeypatch.setattr(Spool, "adopt", failing)
    async with opened(tmp_path, broker) as log:
        async with opened(tmp_path, Broker(up=False)) as dying:
            async with running(log):
                await until(lambda: log.direct)
            await put(dying, b"0", b"1")
        failures.append(OSError("not now, as asked"))
        watching = asyncio.create_task(log.watch())
        await until(lambda: not log.direct)
        await put(log, b"2")
        assert (broker.away, broker.log, failures) == (None, [], [])
        async with running(log):
            await until(lambda: log.direct)
            assert broker.log == [b"0", b"1", b"2"]
            broker.up, broker.silent = False, "nothing listens, as asked"
            await until(lambda: not log.direct)
            assert broker.away == "nothing listens, as asked"
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
