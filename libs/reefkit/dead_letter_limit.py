"""A limit for dead letters. Past it, the consumer keeps its place in the log and waits.

Readiness fails with the reason until a person repairs the cause; a restart tries again.
"""

# If a third of all events fails, a version, a setting or a producer is at fault.

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from prometheus_client import Gauge

from reefcommon.errors import Unavailable

STOPPED = Gauge(
    "reef_dead_letters_stopped",
    "1 once a consumer has stopped because too many of its events were dead letters",
    ["service"],
)


class TooManyDead(Unavailable):
    """The limit is reached: the event waits for a person."""


@dataclass(slots=True)
class DeadLetterLimit:
    """Allows `limit` dead letters in `window_s` seconds, and more up to `share` of all events.

    Once reached it stays reached until a restart.
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

    def __post_init__(self) -> None:
        STOPPED.labels(self.service).set(0)

    def done(self, count: int) -> None:
        now = self.clock()
        if self._done and now - self._done[-1][0] < self.window_s / 60:
            at, before = self._done.pop()
            self._done.append((at, before + count))
        else:
            self._done.append((now, count))
        self._handled += count
        self._forget(now)

    def bury(self, what: str, letter: str = "") -> None:
        """Count a dead letter `letter`, because of `what`. Raises TooManyDead over the limit."""
        now = self.clock()
        self._forget(now)
        # Written again because the broker did not acknowledge it, or another letter of its batch:
        # a broker that is away for a while must not look like a topic full of poison.
        if self.reason is None and letter in self._letters:
            return
        if (
            self.reason is None
            and len(self._dead) >= self.limit
            and len(self._dead) >= self.share * (len(self._dead) + self._handled)
        ):
            self.reason = (
                f"stopped: {len(self._dead)} of {len(self._dead) + self._handled} events of the "
                f"last {self.window_s:.0f} s were dead letters, the next one because of: "
                f"{what[:200]}. Nothing more is thrown away; see `reef dlq list`, mend it, and "
                f"restart {self.service}"
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
