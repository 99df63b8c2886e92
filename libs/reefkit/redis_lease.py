"""A lease with a fencing token in Redis: a single holder acts, the others stand by."""

# Keys of a lease share one hash tag:
#
#     reef:{lease:<name>}:holder  string  `<token>|<holder>`, expires after `ttl_s`
#     reef:{lease:<name>}:token   string  the last token that was given out
#
# With a `home` a process also locks a file in that directory. The holder of that lock may take over
# a lease that a killed process on the same directory has left.
#
# Tokens only grow: `acquire` passes the highest token that the caller's job store has seen, so that
# a Redis that lost its data gives out a higher one all the same.

import asyncio
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
from redis.asyncio import Redis

from reefcommon.errors import Unavailable
from reefcommon.files import lock
from reefkit.background import cancel
from reefkit.redis_heads import answering

log = structlog.get_logger()

# A holder acts for this part of a lease after its last renewal: no other can have it by then.
_CERTAIN = 0.75

# Returns the caller's token, or 0 if another holder has the lease.
_HOLD = """
local held, last = redis.call('GET', KEYS[1]), tonumber(redis.call('GET', KEYS[2]) or '0')
local token, floor = tonumber(ARGV[2]), tonumber(ARGV[4])
if held and held ~= ARGV[2] .. '|' .. ARGV[1] then
  if token > 0 or string.sub(held, -string.len(ARGV[1]) - 1) ~= '|' .. ARGV[1] then return 0 end
end
if token == 0 then token = math.max(last, floor) + 1
elseif not held and last > token then return 0 end
redis.call('SET', KEYS[2], math.max(token, last))
redis.call('SET', KEYS[1], token .. '|' .. ARGV[1], 'PX', ARGV[3])
return token
"""
_RETURN = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
)


class LeaseLost(Unavailable):
    """Another process has taken over: this holder must not write."""


class RedisLease:
    """The lease `name`, for one holder. `token` is 0 until it is acquired."""

    def __init__(
        self, redis: Redis, name: str, home: Path | None = None, *, ttl_s: float = 5.0
    ) -> None:
        """`home`: the state directory of the process, if it outlives the process."""
        self._redis, self._name, self._home, self._ttl_s = redis, name, home, ttl_s
        self._lock: int | None = None
        self._holder = f"{socket.gethostname()}:{home.resolve()}" if home else uuid.uuid4().hex
        self._keys = [f"reef:{{lease:{name}}}:holder", f"reef:{{lease:{name}}}:token"]
        self.token = 0

    async def acquire(self, floor: int = 0, *, wait_s: float = 0.0) -> int:
        """Take the lease with a token above `floor`, and return the token. May be repeated.

        Raises:
            Unavailable: another process has it for `wait_s`, or Redis does not answer.
        """
        if self._home is not None and self._lock is None:
            self._lock = lock(self._home / "host.lock")
            if self._lock is None:
                raise Unavailable(f"stands by: another process uses {self._home}")
        deadline = time.monotonic() + wait_s
        while not self.token:
            self.token = await self._hold(0, floor)
            if not self.token and time.monotonic() >= deadline:
                raise Unavailable(f"stands by: another process has the lease of {self._name}")
            await asyncio.sleep(0 if self.token else min(0.1, self._ttl_s / 5))
        return self.token

    async def keep(self, until: Callable[[float], None] = lambda _time: None) -> None:
        """Renew the lease, once it is acquired, until cancelled. Raises LeaseLost.

        `until` receives the time of the event loop up to which the lease is certain.
        """
        while True:
            await asyncio.sleep(self._ttl_s / 5)
            asked = asyncio.get_running_loop().time()
            try:
                if self.token:
                    # A call that hangs is not waited for: the next one may come through in time.
                    async with asyncio.timeout(self._ttl_s / 4):
                        await self.verify()
                    until(asked + _CERTAIN * self._ttl_s)
            except LeaseLost:
                until(asked)
                raise
            # While Redis is away no other holder can take it either.
            except (Unavailable, TimeoutError) as error:
                log.warning("lease_not_renewed", lease=self._name, reason=repr(error))

    @asynccontextmanager
    async def during(self, *, wait_s: float) -> AsyncIterator[None]:
        """Hold the lease during the block. A killed holder loses it after its time.

        Raises:
            Unavailable: not free within `wait_s`.
            LeaseLost: not renewed. The block is cancelled then.
        """
        await self.acquire(wait_s=wait_s)

        def renewed(until: float) -> None:
            # Expired, the block is being cancelled, or its library has lost the cancellation: it
            # goes on under a lease that was held again meanwhile.
            if not limit.expired():
                limit.reschedule(until)

        try:
            async with asyncio.timeout(_CERTAIN * self._ttl_s) as limit:
                renewing = asyncio.create_task(self.keep(renewed))
                try:
                    yield
                finally:
                    # Not once: redis-py sends under `asyncio.wait_for`, which loses a cancellation
                    # that comes as the bytes leave. The renewal, and this, would go on for ever.
                    await cancel([renewing], again_s=self._ttl_s / 5)
        except TimeoutError:
            if limit.expired():
                lost = f"the lease of {self._name} was lost: another process may have it now"
                raise LeaseLost(lost) from None
            raise
        finally:
            await self.release()

    async def taken(self) -> bool:
        """Return whether a process holds this lease."""
        async with answering("lease"):
            return bool(await self._redis.exists(self._keys[0]))

    async def verify(self) -> None:
        if not await self._hold(self.token, self.token):
            raise LeaseLost(f"another process has taken over {self._name}")

    async def release(self) -> None:
        """Give the lease up at once. May be repeated."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self.token:
            mine, self.token = f"{self.token}|{self._holder}", 0
            async with answering("release a lease"):
                await self._redis.eval(_RETURN, 1, self._keys[0], mine)

    async def _hold(self, token: int, floor: int) -> int:
        limits = (token, int(self._ttl_s * 1000), floor)
        async with answering("hold a lease"):
            return int(await self._redis.eval(_HOLD, 2, *self._keys, self._holder, *limits))
