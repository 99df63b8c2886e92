"""Orders to the generation loop: functions that its thread runs between two steps."""

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from services.engine.domain.errors import EngineStoppedError
from services.engine.work import T


class Orders:
    """A queue of functions. Every function in it is run, also after `close`."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False

    def put(self, order: Callable[[], None]) -> None:
        """Queue a function. Raises `EngineStoppedError` once closed."""
        with self._lock:
            if self._closed:
                raise EngineStoppedError("the generation loop has stopped")
            self._queue.put(order)

    def call(self, action: Callable[[], T]) -> "Future[T]":
        """Like `put`; the future gets the result or the error of `action`."""
        future: Future[T] = Future()
        self.put(lambda: _settle(future, action))
        return future

    def take(self, wait_s: float | None) -> None:
        """Run every order at hand; wait for the first at most `wait_s` seconds (None: for ever)."""
        if wait_s != 0:
            with contextlib.suppress(queue.Empty):
                self._queue.get(timeout=wait_s)()
        while not self._queue.empty():
            self._queue.get_nowait()()

    def close(self) -> None:
        """Refuse further orders and run the last."""
        with self._lock:
            self._closed = True
        self.take(0)


def _settle(future: "Future[Any]", action: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(action())
    except Exception as error:  # noqa: BLE001  it belongs to the caller, through the future
        future.set_exception(error)
