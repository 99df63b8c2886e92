"""A lease with a fencing token in Redis: a single host acts, the others stand by."""

# Keys of a lease share one hash tag:
#
#     reef:{lease:<name>}:holder  string  `<token>|<holder>`, expires after `ttl_s`
#     reef:{lease:<name>}:token   string  the last token that was given out
#
# A process also locks a file in its state directory. The holder of that lock may take over a lease
# that a killed process on the same directory has left.
#
# Tokens only grow: `acquire` passes the highest token that the caller's job store has seen, so that
# a Redis that lost its data gives out a higher one all the same.

import asyncio
import fcntl
import os
import socket
from pathlib import Path

import structlog
from redis.asyncio import Redis

from reefcommon.errors import Unavailable
from reefkit.jobs.ports import LeaseLost
from reefkit.redis_heads import answering
from reefkit.redis_rotation import RETURN

log = structlog.get_logger()

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


class RedisLease:
    """The lease `name`, for one process. `token` is 0 until it is acquired."""

    def __init__(self, redis: Redis, name: str, home: Path, *, ttl_s: float = 10.0) -> None:
        """`home`: the state directory of the process."""
        self._redis, self._name, self._ttl_s = redis, name, ttl_s
        self._lock_path = home / "host.lock"
        self._lock: int | None = None
        self._holder = f"{socket.gethostname()}:{home.resolve()}"
        self._keys = [f"reef:{{lease:{name}}}:holder", f"reef:{{lease:{name}}}:token"]
        self.token = 0

    async def acquire(self, floor: int) -> int:
        """Take the lease with a token above `floor`, and return the token. May be repeated.

        Raises:
            Unavailable: another host has it, or Redis does not answer.
        """
        if self._lock is None:
            self._lock = _locked(self._lock_path)
        token = self.token or await self._hold(0, floor)
        if not token:
            raise Unavailable(f"stands by: another host has the lease of {self._name}")
        self.token = token
        log.info("lease_acquired", lease=self._name, token=token)
        return token

    async def keep(self) -> None:
        """Renew the lease, once it is acquired, until cancelled. Raises LeaseLost."""
        while True:
            await asyncio.sleep(self._ttl_s / 3)
            try:
                if self.token:
                    await self.verify()
            except LeaseLost:
                raise
            except Unavailable as error:  # while Redis is away no other host can take it either
                log.warning("lease_not_renewed", lease=self._name, reason=str(error))

    async def verify(self) -> None:
        if not await self._hold(self.token, self.token):
            raise LeaseLost(f"another host has taken over {self._name}")

    async def release(self) -> None:
        """Give the lease up at once. May be repeated."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        if self.token:
            mine, self.token = f"{self.token}|{self._holder}", 0
            async with answering("release a lease"):
                await self._redis.eval(RETURN, 1, self._keys[0], mine)

    async def _hold(self, token: int, floor: int) -> int:
        async with answering("hold a lease"):
            held = await self._redis.eval(
                _HOLD, 2, *self._keys, self._holder, token, int(self._ttl_s * 1000), floor
            )
        return int(held)


def _locked(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        raise Unavailable(f"stands by: another process uses {path.parent}") from None
    return file
