"""Idempotency keys in Redis: `reef:key:<receipt>` holds an entry, SET NX decides who does the work."""

from redis.asyncio import BlockingConnectionPool, Redis
from redis.exceptions import RedisError

from reefcommon.errors import Unavailable
from services.gateway.domain.ledger import Entry


class RedisLedger:
    """Ledger on Redis or Valkey."""

    def __init__(self, url: str, *, ttl_s: int) -> None:
        # Blocking: a report may name a thousand receipts at once, and waits for a connection where all are taken.
        pool = BlockingConnectionPool.from_url(url, max_connections=64, timeout=5, socket_timeout=5, socket_connect_timeout=2)
        self._redis = Redis.from_pool(pool)
        self._ttl_s = ttl_s

    async def claim(self, key: str, entry: Entry, *, lease_s: float) -> Entry | None:
        """Take the key, for `lease_s` seconds while open, for the time to live where the entry is done."""
        ttl_ms = int(lease_s * 1000) if entry.state == "open" else self._ttl_s * 1000
        try:
            while True:
                if await self._redis.set(_name(key), entry.encode(), nx=True, px=ttl_ms):
                    return None
                data = await self._redis.get(_name(key))
                if isinstance(data, bytes):  # else its lease ran out in between
                    return Entry.decode(data)
        except (RedisError, OSError) as error:
            raise _away(error) from error

    async def renew(self, key: str, *, lease_s: float) -> None:
        """Extend the lease."""
        try:
            await self._redis.pexpire(_name(key), int(lease_s * 1000))
        except (RedisError, OSError) as error:
            raise _away(error) from error

    async def complete(self, key: str, entry: Entry) -> None:
        """Keep the outcome."""
        try:
            await self._redis.set(_name(key), entry.encode(), ex=self._ttl_s)
        except (RedisError, OSError) as error:
            raise _away(error) from error

    async def release(self, key: str) -> None:
        """Forget the key."""
        try:
            await self._redis.delete(_name(key))
        except (RedisError, OSError) as error:
            raise _away(error) from error

    async def find(self, key: str) -> Entry | None:
        """What is there."""
        try:
            data = await self._redis.get(_name(key))
        except (RedisError, OSError) as error:
            raise _away(error) from error
        return Entry.decode(data) if isinstance(data, bytes) else None

    async def stop(self) -> None:
        """Close the connections."""
        await self._redis.aclose()


def _name(key: str) -> str:
    return f"reef:key:{key}"


def _away(error: Exception) -> Unavailable:
    return Unavailable(f"Redis does not answer for idempotency keys: {error!r}")
