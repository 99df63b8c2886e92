"""Work that lasts as long as its process."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import structlog

from reefcommon.errors import ReefError

log = structlog.get_logger()

T = TypeVar("T")

CANCEL_AGAIN_S = 3.0


def lasting(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """A task that never ends by itself. Where it does, its log says why and the process ends in order, so that whoever runs it starts a
    fresh one: that is better than one that looks alive."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_end_process)
    return task


@dataclass(slots=True)
class Rounds(Generic[T]):
    """Work that is done again and again. A round that fails is told once, shown as long as the next one fails alike, and tried again."""

    name: str
    work: Callable[[], Awaitable[T]]
    every_s: float
    first_after_s: float = 0.0
    failing: str = ""
    result: T | None = None
    """What the last round that did not fail has returned."""

    async def run(self) -> None:
        """For ever."""
        await asyncio.sleep(self.first_after_s)
        while True:
            try:
                self.result = await self.work()
                self.failing = ""
            except ReefError as error:
                if str(error) != self.failing:
                    log.warning("round_failed", work=self.name, reason=str(error))
                self.failing = str(error)
            await asyncio.sleep(self.every_s)

    async def check(self) -> str | None:
        """For `/readyz`: what the last round failed with."""
        return self.failing or None


async def end(tasks: Iterable["asyncio.Task[None]"]) -> None:
    """Cancel them and wait. What they failed with was told when they did.

    A library may lose a cancellation, as is seen of a Kafka consumer that had just been started: a task that goes on is cancelled again.
    """
    left = set(tasks)
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=CANCEL_AGAIN_S)


def end_process_where_failed(task: "asyncio.Task[None]") -> None:
    """The same for a task that may end well."""
    if not task.cancelled() and task.exception() is not None:
        _end_process(task)


def _end_process(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        log.error("work_ended", work=task.get_name(), exc_info=task.exception())
        signal.raise_signal(signal.SIGTERM)
