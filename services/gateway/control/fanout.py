"""The live tail of a scenario's events, as the release tail reads them."""

import asyncio
from collections.abc import AsyncIterator

import orjson

from reefcommon.events import Event

KEPT = 256
HEARTBEAT_S = 15.0


class Fanout:
    """Listeners by scenario. A listener that does not keep up is cut off."""

    def __init__(self) -> None:
        self._listeners: dict[str, set[asyncio.Queue[Event | None]]] = {}
        self._closed = False

    def tell(self, event: Event) -> None:
        """Give an event to all listeners of its scenario."""
        for queue in list(self._listeners.get(event.scenario, ())):
            try:
                queue.put_nowait(event)
            except asyncio.QueueFull:
                _end(queue)
                self._listeners[event.scenario].discard(queue)

    def close(self) -> None:
        """End every tail, so that the server can stop."""
        self._closed = True
        for queues in self._listeners.values():
            for queue in queues:
                _end(queue)

    async def tail(self, scenario: str) -> AsyncIterator[bytes]:
        """Yield server-sent events from now on, with a comment as a heartbeat."""
        queue: asyncio.Queue[Event | None] = asyncio.Queue(KEPT)
        self._listeners.setdefault(scenario, set()).add(queue)
        try:
            yield b": listening\n\n"
            while not self._closed:
                try:
                    async with asyncio.timeout(HEARTBEAT_S):
                        event = await queue.get()
                except TimeoutError:
                    yield b": alive\n\n"
                    continue
                if event is None:
                    return
                yield frame(event)
        finally:
            self._listeners.get(scenario, set()).discard(queue)


def _end(queue: asyncio.Queue[Event | None]) -> None:
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(None)


def frame(event: Event) -> bytes:
    """Return an event as a server-sent event."""
    body = event.model_dump(mode="json", exclude_none=True)
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (
        event.event_id.encode(),
        str(body["type"]).encode(),
        orjson.dumps(body),
    )
