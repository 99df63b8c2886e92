"""The service frame: waits for outside systems, runs tasks, and closes in order."""

import asyncio
from dataclasses import dataclass, field

import pytest
from aiokafka.errors import KafkaConnectionError

from reefcommon.errors import Unavailable
from reefkit.ops import Health
from reefkit.retry import RetryPolicy
from reefkit.service import BackgroundTask, Service


@dataclass
class Broker:
    """Refuses to start `away` times."""

    away: int = 0
    starts: int = 0
    calls: list[str] = field(default_factory=list)

    async def connect(self) -> None:
        self.calls.append("connect")

    async def start(self) -> None:
        self.starts += 1
        if self.starts <= self.away:
            raise KafkaConnectionError("connection refused")
        self.calls.append("start")

    async def stop(self) -> None:
        self.calls.append("stop")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RetryPolicy, "delay_s", lambda _self, _failures: 0.001)


def service(broker: Broker, **parts) -> Service:
    return Service(Health("test"), broker, **parts)  # type: ignore[arg-type]


async def started(under_test: Service) -> None:
    async with asyncio.timeout(10):
        while await under_test.health.checks["started"]() is not None:
            await asyncio.sleep(0.001)


async def test_a_broker_that_is_away_is_waited_for_and_named():
    reasons = set()
    under_test = service(Broker(away=3))
    async with under_test.lifespan(None):
        async with asyncio.timeout(10):
            while (reason := await under_test.health.checks["started"]()) is not None:
                reasons.add(reason)
                await asyncio.sleep(0)
    assert any("connection refused" in reason for reason in reasons)
    assert under_test.broker.starts == 4


async def test_prepare_is_repeated_and_precedes_the_consumers():
    broker, tries = Broker(), []

    async def prepare() -> None:
        tries.append(list(broker.calls))
        if len(tries) < 3:
            raise Unavailable("Redis does not answer")

    under_test = service(broker, prepare=prepare)
    async with under_test.lifespan(None):
        await started(under_test)
    assert len(tries) == 3
    assert all("connect" in calls and "start" not in calls for calls in tries)


async def test_early_work_starts_at_once_and_other_work_after_joining():
    broker, began = Broker(away=2), []

    def work(name: str):
        async def run() -> None:
            began.append((name, broker.starts))
            await asyncio.Event().wait()

        return run

    tasks = (
        BackgroundTask("late", work("late")),
        BackgroundTask("early", work("early"), early=True),
    )
    under_test = service(broker, tasks=tasks)
    async with under_test.lifespan(None):
        await started(under_test)
        await asyncio.sleep(0.01)
    assert began == [("early", 0), ("late", 3)]


async def test_work_that_ends_may_end_and_other_work_may_not(monkeypatch: pytest.MonkeyPatch):
    raised = []
    monkeypatch.setattr("reefkit.background.signal.raise_signal", raised.append)

    async def returns() -> None:
        return

    async with service(Broker(), tasks=(BackgroundTask("once", returns, ends=True),)).lifespan(
        None
    ):
        await asyncio.sleep(0.02)
    assert not raised
    async with service(Broker(), tasks=(BackgroundTask("loop", returns),)).lifespan(None):
        await asyncio.sleep(0.02)
    assert raised


async def test_an_error_that_no_retry_can_mend_ends_the_process(monkeypatch: pytest.MonkeyPatch):
    ended = asyncio.Event()
    monkeypatch.setattr("reefkit.background.signal.raise_signal", lambda _number: ended.set())

    async def wrong() -> None:
        raise ValueError("a bug")

    async with service(Broker(), prepare=wrong).lifespan(None), asyncio.timeout(10):
        await ended.wait()


async def test_a_service_that_still_waits_can_be_stopped():
    under_test = service(Broker(away=10**6))
    async with under_test.lifespan(None):
        await asyncio.sleep(0.01)
    assert await under_test.health.checks["started"]() is not None


@pytest.mark.parametrize("fails", [False, True])
async def test_adapters_close_last_first_after_the_broker(fails: bool):
    broker = Broker()

    def closer(name: str):
        async def close() -> None:
            broker.calls.append(name)

        return close

    under_test = service(broker, close=(closer("first"), closer("second")))
    try:
        async with under_test.lifespan(None):
            await started(under_test)
            if fails:
                raise RuntimeError("the server failed")
    except RuntimeError:
        assert fails
    assert broker.calls[-3:] == ["stop", "second", "first"]
