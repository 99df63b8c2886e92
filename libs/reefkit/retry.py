"""Retries with a growing delay, for every loop that waits for an outside system."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import structlog
from aiokafka.errors import KafkaError

from reefcommon.errors import Transient

log = structlog.get_logger()

T = TypeVar("T")

AWAY = (Transient, KafkaError, OSError)
"""Errors that say that an outside system does not answer now."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Delays double from `first_delay_s` up to `max_delay_s`. `max_attempts` 0: no limit."""

    first_delay_s: float = 0.25
    max_delay_s: float = 5.0
    max_attempts: int = 0

    def delay_s(self, failures: int) -> float:
        """Return the seconds to wait after `failures` failures in a row."""
        # The exponent is bounded: 2.0 ** 1024 raises OverflowError.
        return float(min(self.first_delay_s * 2.0 ** min(failures - 1, 30), self.max_delay_s))

    def exhausted(self, failures: int) -> bool:
        return bool(self.max_attempts) and failures >= self.max_attempts


async def wait_for_dependencies(
    call: Callable[[], Awaitable[T]],
    *,
    name: str,
    policy: RetryPolicy = RetryPolicy(),
    waiting: Callable[[str], None] = lambda _reason: None,
) -> T:
    """Call until it succeeds, and return its result. Retries errors of `AWAY` alone.

    `waiting` receives the reason of each failure.
    """
    failures = 0
    while True:
        try:
            return await call()
        except AWAY as error:
            failures += 1
            waiting(f"waits for an outside system: {error!r}")
            log.warning("dependency_unavailable", work=name, attempt=failures, reason=str(error))
            await asyncio.sleep(policy.delay_s(failures))
