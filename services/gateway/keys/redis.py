"""Idempotency keys in Redis: `reef:key:<receipt>` is an entry, `reef:lease:<receipt>` its lease."""

import time
from collections.abc import Awaitable
from dataclasses import replace
from typing import Any

from redis import exceptions
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff

from reefcommon.errors import Unavailable
from services.gateway.domain.keys import KeyEntry

_SINCE = "reef:keys:since"
# Take the key if its entry is as expected and nobody works on it; else return what is there.
_CLAIM = """
local found = redis.call('GET', KEYS[1]) or ''
local leased = redis.call('EXISTS', KEYS[2])
if found ~= ARGV[1] or (found ~= '' and leased == 1) then
  return {found, leased}
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
if ARGV[4] ~= '0' then
  redis.call('SET', KEYS[2], '1', 'PX', ARGV[4])
end
return {}
"""
_RENEW = """
local found = redis.call('GET', KEYS[1])
if found and found ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
redis.call('SET', KEYS[2], '1', 'PX', ARGV[3])
return 1
"""


class RedisKeyStore:
    """KeyStore on Redis or Valkey."""

    def __init__(self, url: str, *, ttl_s: int) -> None:
        # Blocking: a report may name a thousand receipts at once, and waits for a connection.
        # A pool made by hand retries nothing: connections that a restart of the store has cut
        # would each fail one request.
        backoff = ExponentialWithJitterBackoff(base=0.01, cap=0.1)
        again = Retry(backoff, 2, supported_errors=(exceptions.ConnectionError,))
        waits = {"timeout": 5, "socket_timeout": 5, "socket_connect_timeout": 2}
        pool = BlockingConnectionPool.from_url(url, max_connections=64, retry=again, **waits)
        self._redis = Redis.from_pool(pool)
        self._ttl_s = ttl_s
        self._claim = self._redis.register_script(_CLAIM)
        self._renew = self._redis.register_script(_RENEW)

    async def claim(self, key: str, entry: KeyEntry, *, lease_s: float) -> KeyEntry | None:
        expected, before, lease_ms = b"", None, int(lease_s * 1000)
        while True:
            arguments: list[bytes | int] = [expected, entry.encode(), self._ttl_s * 1000, lease_ms]
            answer = await _asked(self._claim(keys=_names(key), args=arguments))
            if not answer:
                return before
            expected, leased = answer
            if not expected:
                continue  # it has run out in between
            before = KeyEntry.decode(expected)
            if before.state == "done" or (before.state == "open" and leased):
                return before
            if before.state == "open":
                # Its gateway died. A record of its work is older than now.
                before = replace(before, state="unsure", ended_at=time.time())

    async def renew(self, key: str, entry: KeyEntry, *, lease_s: float) -> bool:
        ttl_ms, lease_ms = self._ttl_s * 1000, int(lease_s * 1000)
        arguments: list[bytes | int] = [entry.encode(), ttl_ms, lease_ms]
        return bool(await _asked(self._renew(keys=_names(key), args=arguments)))

    async def complete(self, key: str, entry: KeyEntry) -> None:
        name, lease = _names(key)
        async with self._redis.pipeline(transaction=True) as both:
            both.set(name, entry.encode(), ex=self._ttl_s)
            both.delete(lease)
            await _asked(both.execute())

    async def forget(self, key: str) -> None:
        await _asked(self._redis.delete(*_names(key)))

    async def find(self, key: str) -> KeyEntry | None:
        data = await _asked(self._redis.get(_names(key)[0]))
        entry = KeyEntry.decode(data) if isinstance(data, bytes) else None
        return None if entry is None or entry.state == "free" else entry

    async def since(self) -> float:
        now = time.time()
        async with self._redis.pipeline(transaction=True) as both:
            both.set(_SINCE, repr(now), nx=True)
            both.get(_SINCE)
            _, began = await _asked(both.execute())
        if float(began or now) > now + 60:  # the clock was ahead
            await _asked(self._redis.set(_SINCE, repr(now)))
            began = now
        return max(float(began or now), now - self._ttl_s)

    async def stop(self) -> None:
        await self._redis.aclose()


def _names(key: str) -> list[str]:
    return [f"reef:key:{key}", f"reef:lease:{key}"]


async def _asked(answer: Awaitable[Any]) -> Any:
    try:
        return await answer
    except (exceptions.RedisError, OSError) as error:
        raise Unavailable(f"Redis does not answer for idempotency keys: {error!r}") from error
