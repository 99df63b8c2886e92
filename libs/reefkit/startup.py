"""The start of a service that consumes: beside its HTTP endpoint, which says meanwhile what is waited for.

A service that is started while the broker or a store is away is alive and not ready, and needs nobody to start it again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog
from aiokafka.errors import KafkaError
from faststream.kafka import KafkaBroker

from reefcommon.errors import Unavailable
from reefkit.background import cancel, end_process_on_failure
from reefkit.bus import FIRST_DELAY_S, MAX_DELAY_S

log = structlog.get_logger()


class Start:
    """Brings a broker's consumers up, after `first`, as soon as everything that is needed for it answers; then lets `after` begin."""

    def __init__(
        self, broker: KafkaBroker, *, first: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._broker = broker
        self._first = first
        self._done = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._waits_for = "not started yet"

    def begin(self) -> None:
        """Start beside what the caller does next."""
        self._task = asyncio.create_task(self._run(), name="start")
        self._task.add_done_callback(end_process_on_failure)

    async def after(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """`work`, once the start is over."""
        await self._done.wait()
        await work()

    async def check(self) -> str | None:
        """For `/readyz`: what is waited for, else None."""
        return None if self._done.is_set() else self._waits_for

    async def cancel(self) -> None:
        """Give up a start that is still under way."""
        if self._task is not None:
            await cancel((self._task,))

    async def _run(self) -> None:
        delay_s = FIRST_DELAY_S
        while not self._done.is_set():
            try:
                if self._first is not None:
                    await self._first()
                await self._broker.start()
            except (Unavailable, KafkaError, OSError) as error:
                self._waits_for = f"waits for an outside system: {error!r}"
                log.warning("start_put_off", reason=str(error))
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, MAX_DELAY_S)
            else:
                self._done.set()
