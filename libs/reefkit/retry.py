"""Retries with a growing delay, for every loop that waits for an outside system."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import structlog
from aiokafka.errors import KafkaError

from reefcommon.errors import ReefError, Transient

log = structlog.get_logger()

T = TypeVar("T")

MAX_RETRY_AFTER_S = 30.0
AWAY = (Transient, KafkaError, OSError)
"""Errors that say that an outside system does not answer now."""


class GaveUp(ReefError):
    """All attempts failed. There is no result, least of all a score of 0."""


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


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the seconds that an answer asks to wait, within bounds; 0 if it states a date."""
    try:
        return min(max(float(headers.get("retry-after", 0)), 0.0), MAX_RETRY_AFTER_S)
    except ValueError:
        return 0.0


async def retried(
    call: Callable[[], Awaitable[T]],
    policy: RetryPolicy = RetryPolicy(),
    errors: tuple[type[Exception], ...] = AWAY,
    *,
    name: str,
    within_s: float | None = None,
    waiting: Callable[[str], None] = lambda _reason: None,
) -> T:
    """Return the result of `call`. Retries `errors`, and a try longer than `within_s`.

    `waiting` receives the reason of each failure.

    Raises:
        GaveUp: no attempt of `policy` is left.
    """
    failures = 0
    retryable: tuple[type[Exception], ...] = (*errors, TimeoutError)
    while True:
        try:
            async with asyncio.timeout(within_s):
                return await call()
        except retryable as error:
            failures += 1
            reason = str(error) or (f"no answer within {within_s} s" if within_s else repr(error))
            log.warning("call_failed", work=name, attempt=failures, reason=reason)
            if policy.exhausted(failures):
                raise GaveUp(f"{reason} (tried {failures} times)") from error
            waiting(f"waits for an outside system: {reason}")
            await asyncio.sleep(policy.delay_s(failures))
