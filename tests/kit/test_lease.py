"""A lease for the time of a block, with a client that loses cancellations as redis-py does."""

import asyncio
import time
from typing import Any

from reefkit.redis_lease import RedisLease

TTL_S = 0.25


class Losing:
    """A Redis that sends a renewal for a while, and loses a cancellation meanwhile."""

    def __init__(self) -> None:
        self.lost = self.renewals = 0
        self.sending = asyncio.Event()

    async def eval(self, _script: str, keys: int, *_: Any) -> int:
        if keys == 1:  # given up
            return 1
        self.renewals += 1
        self.sending.set()
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            self.lost += 1
            if self.lost > 1:
                raise
        return 7


async def test_a_block_ends_though_its_renewal_loses_the_cancellation() -> None:
    """Else an evaluator would stop to judge a scenario, with its lease held for ever."""
    redis = Losing()
    lease = RedisLease(redis, "trials", ttl_s=TTL_S)  # type: ignore[arg-type]
    async with asyncio.timeout(20), lease.during(wait_s=0):
        redis.sending.clear()
        await redis.sending.wait()
    assert redis.lost >= 1
    assert lease.token == 0
    before = redis.renewals
    await asyncio.sleep(TTL_S)
    assert redis.renewals == before


async def test_a_block_that_loses_its_own_cancellation_is_renewed_on() -> None:
    redis = Losing()
    redis.lost = 1  # only the block loses its cancellation
    lease = RedisLease(redis, "trials", ttl_s=TTL_S)  # type: ignore[arg-type]
    async with asyncio.timeout(20), lease.during(wait_s=0):
        time.sleep(TTL_S)  # the process stood still for the whole lease
        cancelled = False
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            cancelled = True
        before = redis.renewals
        await asyncio.sleep(2 * TTL_S)
        assert redis.renewals > before
    assert cancelled
