"""Which serving nodes are in rotation. The publisher writes it, whoever sends requests reads it."""

from collections.abc import Mapping, Sequence

from redis.asyncio import Redis

from reefcommon.heads_redis import answering

_NODES = "reef:nodes"


def usable(urls: Sequence[str], set_apart: Mapping[str, str]) -> list[str]:
    """The nodes to send requests to: those in rotation, or all of them where none is, since a poor node is better than none."""
    return [url for url in urls if url not in set_apart] or list(urls)


class RedisRotation:
    """The nodes that are set apart, each with the reason, in the hash `reef:nodes`."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def set_apart(self, url: str, reason: str) -> None:
        """Take a node out of rotation. Raises Unavailable where Redis does not answer."""
        async with answering("rotation"):
            await self._redis.hset(_NODES, url, reason)

    async def put_back(self, url: str) -> None:
        """Put a node back into rotation."""
        async with answering("rotation"):
            await self._redis.hdel(_NODES, url)

    async def apart(self) -> dict[str, str]:
        """Nodes out of rotation, each with the reason."""
        async with answering("rotation"):
            found = await self._redis.hgetall(_NODES)
        return {str(url): str(reason) for url, reason in found.items()}
