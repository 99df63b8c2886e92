"""Token buckets: `reef:rate:<bearer>` holds a level and its time until it is full."""

from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from reefcommon.errors import Unavailable
from services.gateway.domain.rate import Limit, Taken

TIMEOUT_S = 0.25  # a request may wait this long once; then the gateway counts for itself

# By Redis' clock, since those of gateways differ. Returns granted, level in thousandths.
_TAKE = """
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local rate, size, want = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local held = redis.call('HMGET', KEYS[1], 'level', 'at')
local level = size
if held[1] then
  level = math.min(size, tonumber(held[1]) + math.max(0, now - tonumber(held[2])) / 1000000 * rate)
end
local granted = math.min(want, math.floor(level))
level = level - granted
redis.call('HSET', KEYS[1], 'level', string.format('%.6f', level), 'at', string.format('%.0f', now))
redis.call('PEXPIRE', KEYS[1], math.min(86400000, math.ceil((size - level) / rate * 1000) + 1000))
return {granted, math.floor(level * 1000)}
"""


class RedisBuckets:
    """Buckets on Redis or Valkey."""

    def __init__(self, url: str) -> None:
        waits: dict[str, Any] = {"socket_timeout": TIMEOUT_S, "socket_connect_timeout": TIMEOUT_S}
        self._redis = Redis.from_url(url, retry=Retry(NoBackoff(), 0), **waits)
        self._take = self._redis.register_script(_TAKE)

    async def take(self, name: str, limit: Limit, want: int) -> Taken:
        try:
            granted, level = await self._take(
                keys=[f"reef:rate:{name}"], args=[limit.per_s, limit.size, want]
            )
        # also one that refuses the script: requests go on, counted here
        except (RedisError, OSError) as error:
            raise Unavailable(f"Redis does not answer for rate limits: {error!r}") from error
        left = int(level) / 1000
        return Taken(int(granted), int(left), 0.0 if granted else max(0.0, 1 - left) / limit.per_s)

    async def stop(self) -> None:
        await self._redis.aclose()
