"""The serving nodes out of rotation, and leases on nodes whose weights are replaced.

The publisher writes it. The gateway and the evaluator read it.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from redis.asyncio import Redis

from reefcommon.errors import Unavailable
from reefkit.redis_heads import answering

_NODES = "reef:nodes"
_LEASE_S = 5.0
_RENEW = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then "
    "return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end return 0"
)
RETURN = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
)


def usable(urls: Sequence[str], set_apart: Mapping[str, str]) -> list[str]:
    """Return the nodes in rotation, or all nodes if none is."""
    return [url for url in urls if url not in set_apart] or list(urls)


class RedisLeases:
    """Exclusive rights by name, each under a key of its own."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix

    @asynccontextmanager
    async def lease(
        self, name: str, *, wait_s: float, lease_s: float = _LEASE_S
    ) -> AsyncIterator[None]:
        """Hold a right during the block. A killed holder loses it after `lease_s`.

        Raises:
            Unavailable: not free within `wait_s`, or not renewed. The block is cancelled then.
        """
        key, token = f"{self._prefix}:{name}", uuid.uuid4().hex
        deadline = asyncio.get_running_loop().time() + wait_s
        while not await self._take(key, token, lease_s):
            if asyncio.get_running_loop().time() > deadline:
                raise Unavailable(f"another process has held the lease on {name} for {wait_s:g} s")
            await asyncio.sleep(min(0.1, lease_s / 5))
        try:
            async with asyncio.timeout(None) as limit:
                renewing = asyncio.create_task(self._renew(key, token, lease_s, limit))
                try:
                    yield
                finally:
                    renewing.cancel()
        except TimeoutError:
            if limit.expired():
                raise Unavailable(
                    f"the lease on {name} was lost: another process may hold it now"
                ) from None
            raise
        finally:
            async with answering("lease"):
                await self._redis.eval(RETURN, 1, key, token)

    async def leased(self, name: str) -> bool:
        """Return whether a process holds this right."""
        async with answering("lease"):
            return bool(await self._redis.exists(f"{self._prefix}:{name}"))

    async def _take(self, key: str, token: str, lease_s: float) -> bool:
        async with answering("lease"):
            return bool(await self._redis.set(key, token, nx=True, px=int(lease_s * 1000)))

    async def _renew(self, key: str, token: str, lease_s: float, limit: asyncio.Timeout) -> None:
        # Ends the block a quarter of a lease before it runs out, while no other can hold it.
        loop = asyncio.get_running_loop()
        valid_until = loop.time() + lease_s
        while loop.time() < valid_until - lease_s / 4:
            await asyncio.sleep(lease_s / 5)
            asked = loop.time()
            try:
                async with asyncio.timeout(lease_s / 4), answering("lease"):
                    if not await self._redis.eval(_RENEW, 1, key, token, int(lease_s * 1000)):
                        break
            except (Unavailable, TimeoutError):
                continue
            valid_until = asked + lease_s
        limit.reschedule(loop.time())


class RedisRotation(RedisLeases):
    """The nodes out of rotation, each with the reason, in the hash `reef:nodes`."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis, "reef:node-update")

    async def set_apart(self, url: str, reason: str) -> None:
        """Take a node out of rotation. Raises Unavailable."""
        async with answering("rotation"):
            await self._redis.hset(_NODES, url, reason)

    async def put_back(self, url: str) -> None:
        async with answering("rotation"):
            await self._redis.hdel(_NODES, url)

    async def apart(self) -> dict[str, str]:
        async with answering("rotation"):
            found = await self._redis.hgetall(_NODES)
        return {str(url): str(reason) for url, reason in found.items()}
