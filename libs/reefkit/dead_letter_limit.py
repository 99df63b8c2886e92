"""A ceiling for dead letters: past so many in a window a consumer stops taking events, rather than throw a whole topic away.

One event that can never be handled is that event's fault; a third of them is the fault of a version, a setting or a producer, which a
person has to mend. The consumer keeps its place in the log, fails readiness and says so; after a restart it tries again.
"""

import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from faststream.kafka import KafkaBroker
from prometheus_client import Gauge

from reefcommon.errors import Unavailable

STOPPED = Gauge(
    "reef_dead_letters_stopped",
    "1 once a consumer has stopped because too many of its events were dead letters",
    ["service"],
)


class TooManyDead(Unavailable):
    """The ceiling is reached: the event is not dead, it waits for a person."""


@dataclass(slots=True)
class Ceiling:
    """`limit` dead letters in `window_s` seconds are allowed, and more as long as they are no more than `share` of the events handled.

    Once reached it stays: what is wrong does not mend itself, and a slow leak through a ceiling that opens again is one all the same.
    """

    service: str
    limit: int
    share: float
    window_s: float
    clock: Callable[[], float] = time.monotonic
    reason: str | None = None
    _dead: deque[tuple[float, str]] = field(default_factory=deque)
    _letters: set[str] = field(default_factory=set)
    _done: deque[tuple[float, int]] = field(default_factory=deque)
    _handled: int = 0

    def done(self, count: int) -> None:
        """So many events had their effect."""
        now = self.clock()
        if self._done and now - self._done[-1][0] < self.window_s / 60:
            at, before = self._done.pop()
            self._done.append((at, before + count))
        else:
            self._done.append((now, count))
        self._handled += count
        self._forget(now)

    def bury(self, what: str, letter: str = "") -> None:
        """One more is about to be a dead letter. Raises TooManyDead where that is one too many.

        letter: its id. One that was counted already is only written again, because the broker did not acknowledge it or another of its
        batch: a broker that is away for a while must not look like a topic full of poison.
        """
        now = self.clock()
        self._forget(now)
        if self.reason is None and letter in self._letters:
            return
        if (
            self.reason is None
            and len(self._dead) >= self.limit
            and len(self._dead) >= self.share * (len(self._dead) + self._handled)
        ):
            self.reason = (
                f"stopped: {len(self._dead)} of {len(self._dead) + self._handled} events of the last {self.window_s:.0f} s were dead "
                f"letters, the next one because of: {what[:200]}. Nothing more is thrown away; see `reef dlq list`, mend it, "
                f"and restart {self.service}"
            )
            STOPPED.labels(self.service).set(1)
        if self.reason is not None:
            raise TooManyDead(self.reason)
        self._dead.append((now, letter))
        if letter:
            self._letters.add(letter)

    def _forget(self, now: float) -> None:
        while self._dead and now - self._dead[0][0] > self.window_s:
            self._letters.discard(self._dead.popleft()[1])
        while self._done and now - self._done[0][0] > self.window_s:
            self._handled -= self._done.popleft()[1]


_CEILINGS: weakref.WeakKeyDictionary[KafkaBroker, Ceiling] = weakref.WeakKeyDictionary()


def put_up(broker: KafkaBroker, ceiling: Ceiling) -> None:
    """Give a broker's consumers one ceiling."""
    _CEILINGS[broker] = ceiling
    STOPPED.labels(ceiling.service).set(0)


def ceiling_of(broker: KafkaBroker | None) -> Ceiling | None:
    """The ceiling of a broker's consumers, where it has one."""
    return None if broker is None else _CEILINGS.get(broker)
