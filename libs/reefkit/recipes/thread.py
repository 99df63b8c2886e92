"""A thread with an event loop of its own for the recipe of a binding."""

import asyncio
import contextvars
import ctypes
import threading
import time
import traceback
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from reefcommon.errors import Transient, Unavailable

log = structlog.get_logger()
T = TypeVar("T")

MAX_HANGING = 4
BEAT_S = 0.5
LOOK_S = 1.0
_CALL: contextvars.ContextVar["_Call | None"] = contextvars.ContextVar("reef_call", default=None)


class RecipeTimeout(Transient):
    """Code of a recipe took too long."""


class Interrupted(Unavailable):
    """Another call of the recipe has blocked its thread; this call is made again."""


class _Stopped(SystemExit):
    """Raised inside a blocked thread, to end an endless loop."""


@dataclass(slots=True, eq=False)
class _Call:
    name: str
    result: "Future[Any]" = field(default_factory=Future)
    task: "asyncio.Task[None] | None" = None


class _Loop:
    """A daemon thread that runs an event loop. A recipe that raises SystemExit does not end it."""

    def __init__(self, name: str) -> None:
        self.loop, self.beat, self.calls = asyncio.new_event_loop(), time.monotonic(), set[_Call]()
        self.owners: weakref.WeakKeyDictionary[Any, _Call | None] = weakref.WeakKeyDictionary()
        self.loop.set_task_factory(self._task)
        self.loop.set_exception_handler(self._note)
        self.ended = False
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    # A task that the recipe has started inherits the context of its call.
    def _task(
        self,
        loop: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        context: contextvars.Context | None = None,
    ) -> "asyncio.Task[Any]":
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
        self.owners[task] = context.get(_CALL) if context is not None else _CALL.get()
        return task

    def _note(self, _loop: asyncio.AbstractEventLoop, facts: dict[str, Any]) -> None:
        # No traceback: it would be made inside the garbage collector, and may quote a user.
        if not isinstance(facts.get("exception"), SystemExit):
            words = {"message": facts.get("message"), "error": repr(facts.get("exception"))[:500]}
            log.warning("recipe_task_failed", thread=self.thread.name, **words)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.call_soon(self._tick)
        while not self.ended:
            try:
                self.loop.run_forever()
            except _Stopped:
                break
            # asyncio hands SystemExit of any task to its loop.
            except BaseException as error:  # noqa: BLE001
                log.warning("recipe_loop_interrupted", thread=self.thread.name, error=repr(error))
        with suppress(BaseException):
            left = asyncio.all_tasks(self.loop)
            for task in left:
                task.cancel()
            if left:
                self.loop.run_until_complete(asyncio.wait(left, timeout=LOOK_S))
        self.loop.close()

    def _tick(self) -> None:
        self.beat = time.monotonic()
        self.loop.call_later(BEAT_S, self._tick)

    @property
    def blocked_s(self) -> float:
        silent = time.monotonic() - self.beat
        return silent if silent > 4 * BEAT_S else 0.0

    def culprit(self) -> _Call | None:
        task = asyncio.current_task(self.loop)
        return self.owners.get(task) if task is not None else None

    def soon(self, function: Callable[..., object], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(function, *arguments)

    def stop(self) -> None:
        self.ended = True
        self.soon(self.loop.stop)

    def kill(self) -> None:
        """Ask the interpreter to raise in the thread. A call into C ends first."""
        self.ended = True
        ident = ctypes.c_ulong(self.thread.ident or 0)
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(_Stopped))
        self.soon(self.loop.stop)


class RecipeThread:
    """Runs coroutines of a recipe. What blocks there holds up this recipe alone.

    A thread that is blocked for `blocked_limit_s` is abandoned, and another is started.
    """

    def __init__(self, name: str, *, blocked_limit_s: float = 60.0) -> None:
        self.name, self.blocked_limit_s = name, blocked_limit_s
        self._loop: _Loop | None = None
        self._hanging: list[_Loop] = []

    async def call(
        self, function: Callable[..., Awaitable[T]], *arguments: Any, timeout_s: float | None
    ) -> T:
        """Return the result of a coroutine function. If cancelled, it cancels the coroutine.

        Raises:
            RecipeTimeout: it takes longer than `timeout_s`, or blocks the thread.
            Interrupted: another call has blocked the thread.
            Unavailable: too many abandoned threads are still blocked.
        """
        place, call = self._current(), _Call(getattr(function, "__name__", "call"))
        place.calls.add(call)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        waiting = asyncio.wrap_future(call.result)
        place.soon(_start, place, call, function, arguments)
        try:
            while not waiting.done():
                left = LOOK_S if deadline is None else deadline - time.monotonic()
                await asyncio.wait((waiting,), timeout=max(min(left, LOOK_S), 0.0))
                if waiting.done():
                    break
                late = deadline is not None and time.monotonic() >= deadline
                if place.blocked_s > (0.0 if late else self.blocked_limit_s):
                    self._abandon(place)
                elif late:
                    raise RecipeTimeout(
                        f"{self.name}: {call.name} takes longer than {timeout_s:g} s"
                    )
            result: T = waiting.result()
            return result
        finally:
            place.calls.discard(call)
            if not waiting.done():
                waiting.cancel()
                place.soon(_cancel, call)

    def facts(self) -> dict[str, object]:
        place = self._loop
        blocked = place.blocked_s if place is not None else 0.0
        running = [call.name for call in place.calls] if place is not None else []
        hanging = len([loop for loop in self._hanging if loop.thread.is_alive()])
        return {"running": running, "blocked_s": round(blocked, 1), "abandoned": hanging}

    def stop(self) -> None:
        """End the thread. It does not wait for a coroutine that runs."""
        place, self._loop = self._loop, None
        if place is not None:
            for call in list(place.calls):
                place.soon(_cancel, call)
            place.stop()

    def _current(self) -> _Loop:
        self._hanging = [loop for loop in self._hanging if loop.thread.is_alive()]
        if self._loop is None:
            if len(self._hanging) >= MAX_HANGING:
                hanging = f"{MAX_HANGING} threads of it are blocked"
                raise Unavailable(f"{self.name}: {hanging}; restart to go on")
            self._loop = _Loop(self.name)
        return self._loop

    def _abandon(self, place: _Loop) -> None:
        culprit, blocked = place.culprit(), f"blocks its thread for {place.blocked_s:.0f} s"
        log.warning("recipe_thread_abandoned", recipe=self.name, call=culprit and culprit.name)
        # Before the thread is ended: its end cancels the calls, which would be their reason then.
        for call in list(place.calls):
            if culprit in (None, call):
                _fail(call, RecipeTimeout(f"{self.name}: {call.name} {blocked}"))
            else:
                _fail(call, Interrupted(f"{self.name}: another call {blocked}"))
        if self._loop is place:
            self._loop = None
            self._hanging.append(place)
            place.kill()


def _start(
    place: _Loop, call: _Call, function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]
) -> None:
    if place.ended or call.result.done():  # it was queued behind a call that blocked the thread
        _fail(call, Interrupted(f"{call.name} was not begun"))
        return
    context = contextvars.copy_context()
    context.run(_CALL.set, call)
    work = _settle(call, function, arguments)
    try:
        call.task = place.loop.create_task(work, context=context)
    except BaseException:  # the thread's end is raised anywhere
        work.close()
        raise


def _cancel(call: _Call) -> None:
    if call.task is not None:
        call.task.cancel()


async def _settle(
    call: _Call, function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]
) -> None:
    try:
        result = await function(*arguments)
    except _Stopped:
        raise
    except asyncio.CancelledError:
        _fail(call, Interrupted(f"{call.name} was cancelled"))
    except BaseException as error:  # noqa: BLE001  # handed to the caller
        _fail(call, carried(error))
    else:
        with suppress(InvalidStateError):  # given up meanwhile
            call.result.set_result(result)


def carried(error: BaseException) -> Exception:
    """Return an error that a future can carry to its waiter."""
    # sys.exit() would end the host, a cancelled future of the recipe's own would cancel the waiter,
    # and StopIteration never reaches it.
    if isinstance(error, Exception) and not isinstance(error, StopIteration | FutureCancelled):
        return error
    words = "".join(traceback.format_exception_only(error)).strip()
    return RuntimeError(words).with_traceback(error.__traceback__)


def _fail(call: _Call, error: Exception) -> None:
    with suppress(InvalidStateError):
        call.result.set_exception(error)
