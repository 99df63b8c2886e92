"""Idempotency keys in Redis: `reef:key:<receipt>` holds an entry, SET NX decides who does the work.

Entries have a time to live; that a key was used at all is remembered without end in a Bloom filter of fixed size (8 MiB, 7 bits a key: one
new key in a hundred looks used after seven million). What it has not seen was never used, where it is whole: kept since the log was empty.
"""

import time
from dataclasses import replace
from hashlib import blake2b

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import ConnectionError, RedisError

from reefcommon.errors import Unavailable
from services.gateway.domain.keys import KeyEntry, Known

_SINCE = "reef:keys:since"
_SEEN, _WHOLE = "reef:keys:seen", "reef:keys:whole"
_BITS, _BITS_A_KEY = 1 << 26, 7
_MARK = """
local new = 0
for i = 1, #ARGV do
  if redis.call('SETBIT', KEYS[1], ARGV[i], 1) == 0 then new = 1 end
end
return new * (1 + redis.call('EXISTS', KEYS[2]))
"""
_TAKE = """
if redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
return 1
"""
_KNOWN: tuple[Known, ...] = ("used", "unseen", "new")


class RedisKeyStore:
    """KeyStore on Redis or Valkey."""

    def __init__(self, url: str, *, ttl_s: int) -> None:
        # Blocking: a report may name a thousand receipts at once, and waits for a connection where all are taken.
        # A pool made by hand retries nothing: connections that a restart of the store has cut would each fail one request.
        again = Retry(
            ExponentialWithJitterBackoff(base=0.01, cap=0.1), 2, supported_errors=(ConnectionError,)
        )
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=64,
            timeout=5,
            socket_timeout=5,
            socket_connect_timeout=2,
            retry=again,
        )
        self._redis = Redis.from_pool(pool)
        self._ttl_s = ttl_s
        self._mark = self._redis.register_script(_MARK)
        self._take = self._redis.register_script(_TAKE)

    async def claim(self, key: str, entry: KeyEntry, *, lease_s: float) -> KeyEntry | None:
        """Take the key where nobody has it, or it is free: for `lease_s` seconds while open, for the time to live where it is done."""
        ttl_ms = int(lease_s * 1000) if entry.state == "open" else self._ttl_s * 1000
        try:
            while True:
                if await self._redis.set(_name(key), entry.encode(), nx=True, px=ttl_ms):
                    return None
                data = await self._redis.get(_name(key))
                if not isinstance(data, bytes):
                    continue  # its lease ran out in between
                existing = KeyEntry.decode(data)
                if existing.state != "free" or await self._take(
                    keys=[_name(key)], args=[data, entry.encode(), ttl_ms]
                ):
                    return existing
        except (RedisError, OSError) as error:
            raise _away(error) from error

    async def since(self) -> tuple[float, float]:
        """Since when this store has every entry, and since when it remembers at all: a key of its own, lost together with the others."""
        now = time.time()
        try:
            await self._redis.set(_SINCE, repr(now), nx=True)
            found = await self._redis.get(_SINCE)
        except (RedisError, OSError) as error:
            raise _away(error) from error
        began = float(found) if found else now
        return max(began, now - self._ttl_s), began

    async def note(self, key: str) -> Known:
        """Mark the key as used; what is known of it until now."""
        digest = blake2b(key.encode(), digest_size=8 * _BITS_A_KEY).digest()
        bits = [int.from_bytes(digest[i : i + 8], "big") % _BITS for i in range(0, len(digest), 8)]
        try:
            found: int = await self._mark(keys=[_SEEN, _WHOLE], args=bits)
        except (RedisError, OSError) as error:
            raise _away(error) from error
        return _KNOWN[found]

    async def call_whole(self) -> None:
        """Nothing was used that is not marked: the log was empty when this store began to remember."""
        try:
            await self._redis.set(_WHOLE, "1")
        except (RedisError, OSError) as error:
            raise _away(error) from error

    async def renew(self, key: str, entry: KeyEntry, *, lease_s: float) -> None:
        """Extend the lease; take the key again where the store has lost it."""
        lease_ms = int(lease_s * 1000)
        try:
            if not await self._redis.pexpire(_name(key), lease_ms):
                await self._redis.set(_name(key), entry.encode(), nx=True, px=lease_ms)
                await self.note(key)
        except (RedisError, OSError) as error:
            raise _away(error) from error

    async def complete(self, key: str, entry: KeyEntry) -> None:
        """Keep the outcome."""
        try:
            await self._redis.set(_name(key), entry.encode(), ex=self._ttl_s)
        except (RedisError, OSError) as error:
            raise _away(error) from error

    async def free(self, key: str, entry: KeyEntry) -> None:
        """Keep that nothing was recorded."""
        await self.complete(key, replace(entry, state="free"))

    async def release(self, key: str) -> None:
        """Forget the key."""
        try:
            await self._redis.delete(_name(key))
        except (RedisError, OSError) as error:
            raise _away(error) from error

    async def find(self, key: str) -> KeyEntry | None:
        """What is there, unless it is free."""
        try:
            data = await self._redis.get(_name(key))
        except (RedisError, OSError) as error:
            raise _away(error) from error
        found = KeyEntry.decode(data) if isinstance(data, bytes) else None
        return None if found is None or found.state == "free" else found

    async def stop(self) -> None:
        """Close the connections."""
        await self._redis.aclose()


def _name(key: str) -> str:
    return f"reef:key:{key}"


def _away(error: Exception) -> Unavailable:
    return Unavailable(f"Redis does not answer for idempotency keys: {error!r}")
