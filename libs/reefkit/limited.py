"""Several jobs side by side, a limited number at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class Places:
    """A semaphore for whichever event loop asks: a recipe may get a new loop."""

    count: int
    _room: tuple[asyncio.AbstractEventLoop, asyncio.Semaphore] | None = None

    def here(self) -> asyncio.Semaphore:
        loop = asyncio.get_running_loop()
        if self._room is None or self._room[0] is not loop:
            self._room = (loop, asyncio.Semaphore(self.count))
        return self._room[1]


async def limited(
    at_once: int, jobs: Sequence[Callable[[], Awaitable[T]]], *, finish: bool = False
) -> list[T]:
    """Return the results in order. If a job fails, the others are cancelled.

    With `finish`, those under way end first.
    """
    room, failures = asyncio.Semaphore(at_once), list[Exception]()

    async def run(job: Callable[[], Awaitable[T]]) -> T:
        async with room:
            if failures:
                raise failures[0]
            try:
                return await job()
            except Exception as error:
                failures.append(error)
                raise

    tasks = [asyncio.create_task(run(job)) for job in jobs]
    try:
        if finish and tasks:
            await asyncio.wait(tasks)
        return await asyncio.gather(*tasks)
    finally:
        # If one job fails or is cancelled, gather leaves the others running: their cleaning up too.
        for task in tasks:
            if not task.cancelling():  # a second time would end its cleaning up
                task.cancel()
        if tasks:
            await asyncio.wait(tasks)
