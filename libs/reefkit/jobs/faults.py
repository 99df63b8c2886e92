"""Faults in a recipe's code: a time limit, the samples at fault, and the place."""

import asyncio
import sysconfig
import threading
import traceback
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from reefcommon.errors import ReefError, Unavailable
from reefkit.recipes.thread import RecipeTimeout, carried

T = TypeVar("T")
S = TypeVar("S")
MAX_HANGING = 8
_LAST_LINES = 6
MAX_REASON_CHARS, _MAX_LINE_CHARS = 500, 400
_LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("platlib"), "<")


class StepTimeout(RecipeTimeout):
    """The step took too long. The host does not look for the sample at fault."""


@dataclass(slots=True)
class BoundedCall(Generic[T]):
    """Runs blocking code of a recipe in a thread, with a time limit."""

    name: str
    limit_s: float
    _running: "set[Future[T]]" = field(default_factory=set)

    async def __call__(self, function: Callable[..., T], *arguments: Any) -> T:
        """Raises StepTimeout, or Unavailable if too many abandoned calls still run."""
        # A thread cannot be stopped, so the number of those that hang is bounded.
        if len(self._running) >= MAX_HANGING:
            hanging = f"{MAX_HANGING} calls have not returned"
            raise Unavailable(f"{self.name}: {hanging}; restart to go on")
        future = _begun(self.name, function, arguments)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        waiting = asyncio.wrap_future(future)
        waiting.add_done_callback(lambda done: done.exception())  # seen, also if it is too late
        done, _ = await asyncio.wait((waiting,), timeout=self.limit_s)
        if not done:
            raise StepTimeout(f"{self.name} takes longer than {self.limit_s:.0f} s")
        return waiting.result()


def called_within(limit_s: float, function: Callable[..., T], *arguments: Any) -> T:
    """Call a recipe's code in a thread of its own, and block. Raises TimeoutError if it is late."""
    future = _begun("recipe", function, arguments)
    try:
        return future.result(limit_s)
    except TimeoutError as error:
        if future.done():  # the code's own
            raise
        raise TimeoutError(f"no answer within {limit_s:g} s") from error


def _begun(name: str, function: Callable[..., T], arguments: Sequence[Any]) -> "Future[T]":
    future: Future[T] = Future()
    work = (future, function, arguments)
    # A daemon thread: a call that hangs does not keep the process from ending.
    threading.Thread(target=_settle, args=work, name=name, daemon=True).start()
    return future


def _settle(future: "Future[T]", function: Callable[..., T], arguments: Sequence[Any]) -> None:
    try:
        future.set_result(function(*arguments))
    except BaseException as error:  # noqa: BLE001  # handed to the caller
        future.set_exception(carried(error))


async def minimal_failing(
    items: Sequence[S], fails: Callable[[Sequence[S]], Awaitable[bool]]
) -> list[S]:
    """Return a smallest failing part of `items`, in about 2 log2 n calls for a single cause."""
    # Delta debugging: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input",
    # IEEE TSE 28(2), 2002.
    left, parts = list(items), 2
    while len(left) > 1:
        size = -(-len(left) // parts)
        chunks = [left[at : at + size] for at in range(0, len(left), size)]
        for index, chunk in enumerate(chunks):
            rest = [item for other in (*chunks[:index], *chunks[index + 1 :]) for item in other]
            if await fails(chunk):
                left, parts = chunk, 2
                break
            # With two chunks the rest is the other chunk, which has its own turn.
            if len(chunks) > 2 and await fails(rest):
                left, parts = rest, max(len(chunks) - 1, 2)
                break
        else:
            if parts >= len(left):
                break
            parts = min(len(left), 2 * parts)
    return left


def place_of(error: BaseException) -> str:
    """Return type, file and line of an error; of an error of Reef, its message."""
    # Messages of foreign errors may quote a user.
    if isinstance(error, ReefError):
        return bounded(str(error))
    every = traceback.extract_tb(error.__traceback__)
    # The deepest line of the author, not of a library that was called there.
    frames = [frame for frame in every if not frame.filename.startswith(_LIBRARIES)] or every
    at = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{at}"


def last_lines(error: BaseException) -> str:
    lines = "".join(traceback.format_exception(error)).strip().splitlines()
    return "\n".join(bounded(line.rstrip(), _MAX_LINE_CHARS) for line in lines[-_LAST_LINES:])


def bounded(words: str, limit: int = MAX_REASON_CHARS) -> str:
    """Return a text for events and `/status`: short, and writable as UTF-8."""
    words = words.encode("utf-8", "replace").decode()
    return words if len(words) <= limit else f"{words[: limit - 1]}…"
