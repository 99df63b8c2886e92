"""The start beside the endpoint: what is away is waited for, and said."""

import asyncio
from dataclasses import dataclass

import pytest
from aiokafka.errors import KafkaConnectionError

from reefcommon.errors import Unavailable
from reefkit import startup as starting
from reefkit.startup import Start


@dataclass
class Broker:
    """Refuses `away` times."""

    away: int
    starts: int = 0

    async def start(self) -> None:
        self.starts += 1
        if self.starts <= self.away:
            raise KafkaConnectionError("nobody listens")


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not await condition():
            await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(starting, "FIRST_DELAY_S", 0.01)
    monkeypatch.setattr(starting, "MAX_DELAY_S", 0.02)


async def test_a_broker_that_is_away_is_waited_for_and_named_and_work_begins_after_it():
    broker, began = Broker(away=3), []
    start = Start(broker)  # type: ignore[arg-type]
    assert await start.check() == "not started yet"

    async def work() -> None:
        began.append(broker.starts)

    start.begin()
    task = asyncio.create_task(start.after(work))

    async def named() -> bool:
        return "nobody listens" in (await start.check() or "")

    await until(named)
    assert not began
    await task
    assert began == [4]
    assert await start.check() is None
    await start.cancel()


async def test_what_has_to_come_first_is_tried_again_too():
    tries = []

    async def first() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise Unavailable("Redis does not answer")

    start = Start(Broker(away=0), first=first)  # type: ignore[arg-type]
    start.begin()

    async def over() -> bool:
        return await start.check() is None

    await until(over)
    assert len(tries) == 3
    await start.cancel()


async def test_a_start_that_can_never_work_ends_the_process_and_one_under_way_can_be_given_up(
    monkeypatch,
):
    ended = asyncio.Event()
    monkeypatch.setattr("reefkit.background.signal.raise_signal", lambda number: ended.set())

    async def wrong() -> None:
        raise ValueError("a bug")

    start = Start(Broker(away=0), first=wrong)  # type: ignore[arg-type]
    start.begin()
    async with asyncio.timeout(10):
        await ended.wait()
    await start.cancel()
    waiting = Start(Broker(away=10**6))  # type: ignore[arg-type]
    waiting.begin()
    await asyncio.sleep(0)
    await waiting.cancel()
    assert await waiting.check() is not None
