"""The serving nodes out of rotation, and the leases on nodes whose weights are replaced.

The publisher writes it. The gateway and the evaluator read it.
"""

from collections.abc import Mapping, Sequence

from redis.asyncio import Redis

from reefkit.redis_heads import answering
from reefkit.redis_lease import RedisLease

_NODES = "reef:nodes"


def usable(urls: Sequence[str], set_apart: Mapping[str, str]) -> list[str]:
    """Return the nodes in rotation, or all nodes if none is."""
    return [url for url in urls if url not in set_apart] or list(urls)


class RedisRotation:
    """The nodes out of rotation, each with the reason, in the hash `reef:nodes`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    def lease(self, url: str) -> RedisLease:
        """Return the right to replace the weights of a node."""
        return RedisLease(self._redis, f"node-update:{url}")

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
