"""Several jobs side by side, a limited number at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


async def limited(at_once: int, jobs: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Return the results in order. If a job fails, the others are cancelled."""
    room = asyncio.Semaphore(at_once)

    async def run(job: Callable[[], Awaitable[T]]) -> T:
        async with room:
            return await job()

    tasks = [asyncio.create_task(run(job)) for job in jobs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        # If one job fails, gather leaves the others running.
        for task in tasks:
            task.cancel()
