"""Bounded retries of calls to serving nodes and stores."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog

from reefcommon.errors import ReefError
from reefkit.retry import RetryPolicy

log = structlog.get_logger()

T = TypeVar("T")


class GaveUp(Exception):
    """All attempts failed. There is no result, least of all a score of 0."""


async def retried(
    call: Callable[[], Awaitable[T]],
    policy: RetryPolicy,
    errors: tuple[type[ReefError], ...],
    *,
    within_s: float | None = None,
) -> T:
    """Return the result of `call`. Retries `errors`, and a try longer than `within_s`.

    Raises:
        GaveUp: no attempt is left.
    """
    failures = 0
    retryable: tuple[type[Exception], ...] = (*errors, TimeoutError)
    while True:
        try:
            async with asyncio.timeout(within_s):
                return await call()
        except retryable as error:
            failures += 1
            reason = str(error) or f"no answer within {within_s} s"
            log.warning("call_failed", attempt=failures, reason=reason)
            if policy.exhausted(failures):
                raise GaveUp(f"{reason} (tried {failures} times)") from error
            await asyncio.sleep(policy.delay_s(failures))
