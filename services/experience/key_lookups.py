"""Lookups of clients' own receipts: those that come during a query share the next."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

Row = dict[str, Any]
MOST_TOGETHER = 500


# A seeker asks a grid at once: a query for each of its keys would cost more than the answers.
@dataclass(slots=True)
class KeyLookups:
    """`read` returns the rows that it finds by key."""

    read: Callable[[Sequence[str]], Awaitable[Mapping[str, Row]]]
    _waiting: dict[str, asyncio.Future[Row | None]] = field(default_factory=dict)
    _task: asyncio.Task[None] | None = None

    async def find(self, key: str) -> Row | None:
        """Return what a query finds that begins after this call. Raises as `read`."""
        loop = asyncio.get_running_loop()
        if (future := self._waiting.get(key)) is None:
            future = self._waiting[key] = loop.create_future()
        if self._task is None:
            self._task = loop.create_task(self._drain())
        # Others may wait for the same key when this caller has gone.
        return await asyncio.shield(future)

    async def _drain(self) -> None:
        try:
            while self._waiting:
                asked = dict(islice(self._waiting.items(), MOST_TOGETHER))
                for key in asked:
                    del self._waiting[key]
                try:
                    found = await self.read(list(asked))
                except Exception as error:  # noqa: BLE001  handed to those who ask
                    for future in asked.values():
                        future.set_exception(error)
                        future.exception()  # seen, also if all have gone
                else:
                    for key, future in asked.items():
                        future.set_result(found.get(key))
        finally:
            self._task = None
