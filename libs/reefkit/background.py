"""Background tasks that live as long as their process."""

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


def run_forever(work: Coroutine[Any, Any, None], name: str) -> "asyncio.Task[None]":
    """Run `work` for the life of the process.

    If it returns or fails, log the error and stop the process, so that the supervisor restarts it.
    """
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_end_process)
    return task


@dataclass(slots=True)
class Periodic(Generic[T]):
    """Call `work` every `every_s` seconds. `check` shows a failure; it is logged once."""

    name: str
    work: Callable[[], Awaitable[T]]
    every_s: float
    first_after_s: float = 0.0
    failing: str = ""
    result: T | None = None
    """The result of the last successful call."""

    async def run(self) -> None:
        await asyncio.sleep(self.first_after_s)
        while True:
            try:
                self.result = await self.work()
                self.failing = ""
            # A mistake that nobody foresaw is put off too: the rest of the process goes on.
            except Exception as error:
                ours = isinstance(error, ReefError)
                reason = str(error) if ours else f"{type(error).__name__}: {error}"
                if reason != self.failing:
                    log.warning("round_failed", work=self.name, reason=reason, exc_info=not ours)
                self.failing = reason
            await asyncio.sleep(self.every_s)

    async def check(self) -> str | None:
        """Return the error of the last call."""
        return self.failing or None


async def cancel(tasks: Iterable["asyncio.Task[None]"], again_s: float = CANCEL_AGAIN_S) -> None:
    """Cancel tasks and wait for their end."""
    left = set(tasks)
    while left:
        # A library may lose a cancellation, as a Kafka consumer does that was just started, and all
        # that waits by `asyncio.wait_for` before Python 3.12.
        for task in left:
            task.cancel()
        ended, left = await asyncio.wait(left, timeout=again_s)
        for task in ended:
            if not task.cancelled():
                task.exception()  # it was ended: no one asks for its error


def end_process_on_failure(task: "asyncio.Task[None]") -> None:
    """Stop the process if a task failed. A done callback."""
    if not task.cancelled() and task.exception() is not None:
        _end_process(task)


def _end_process(task: "asyncio.Task[None]") -> None:
    if not task.cancelled():
        log.error("work_ended", work=task.get_name(), exc_info=task.exception())
        signal.raise_signal(signal.SIGTERM)
