"""Work for the generation loop's thread, in order of arrival."""

import contextlib
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from services.engine.domain.errors import EngineStoppedError
from services.engine.domain.work import T

Order = Callable[[], None]


class Orders:
    """A queue of functions. Every function in it is run, also after `close`."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Order, bool]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        # The order that `take_submissions` stopped at. Only the loop's thread uses it.
        self._next: Order | None = None

    def put(self, order: Order, *, submission: bool = False) -> None:
        """Queue a function. Raises `EngineStoppedError` once closed."""
        with self._lock:
            if self._closed:
                raise EngineStoppedError("the generation loop has stopped")
            self._queue.put((order, submission))

    def call(self, action: Callable[[], T]) -> "Future[T]":
        """Like `put`; the future gets the result or the error of `action`."""
        future: Future[T] = Future()
        self.put(lambda: _settle(future, action))
        return future

    def take(self, wait_s: float | None) -> None:
        """Run every order at hand; wait for the first at most `wait_s` seconds (None: for ever)."""
        if self._next is not None:
            order, self._next, wait_s = self._next, None, 0
            order()
        if wait_s != 0:
            with contextlib.suppress(queue.Empty):
                self._queue.get(timeout=wait_s)[0]()
        while not self._queue.empty():
            self._queue.get_nowait()[0]()

    def take_submissions(self, wait_s: float = 0) -> bool:
        """Run the submissions at hand; False if another order comes after them."""
        while self._next is None:
            if not wait_s and self._queue.empty():
                return True
            try:
                order, submission = self._queue.get(timeout=wait_s)
            except queue.Empty:
                return True
            wait_s = 0
            if submission:
                order()
            else:
                self._next = order
        return False

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
