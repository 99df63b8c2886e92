"""ReleaseHeads on Redis 7 or newer, or Valkey.

Keys of a scenario share one hash tag, so that the script below also works on a cluster:

    reef:{<scenario>}:head      string  release id
    reef:{<scenario>}:chain     list    release ids, newest first
    reef:{<scenario>}:releases  hash    release id -> release as JSON, what is in the chain
    reef:{<scenario>}:pending   hash    release id -> release as JSON, what waits for a person
    reef:scenarios              set     scenarios that may have a head

All of it is a projection of `reef.releases.v1`: lost, it is rebuilt from there. Under another prefix than `reef` it can be built a second
time, to be compared.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from redis import exceptions
from redis.asyncio import Redis

from reefcommon.errors import Conflict, Unavailable
from reefcommon.events import Release

PREFIX = "reef"

# Returns "" where the release is the head or in the chain now, else what the head is instead.
_ADVANCE = """
local stored = redis.call('HGET', KEYS[3], ARGV[2])
if stored then
  if stored == ARGV[3] then return '' end
  return 'another release under the same id'
end
local head = redis.call('GET', KEYS[1]) or ''
if head ~= ARGV[1] then
  if head == '' then return 'nothing' end
  return head
end
redis.call('HSET', KEYS[3], ARGV[2], ARGV[3])
redis.call('LPUSH', KEYS[2], ARGV[2])
redis.call('SET', KEYS[1], ARGV[2])
return ''
"""

_AWAY = (exceptions.ConnectionError, exceptions.TimeoutError, exceptions.ReadOnlyError, exceptions.OutOfMemoryError, OSError)


@asynccontextmanager
async def answering(what: str) -> AsyncIterator[None]:
    """Turn the client's ways of saying that the server is away, loading, full or a replica into Unavailable."""
    try:
        yield
    except _AWAY as error:
        raise Unavailable(f"Redis does not answer ({what}): {error}") from error


def connect(url: str) -> Redis:
    """A client with short time-outs: a caller that waits belongs in the bus's retries, not in a socket."""
    return Redis.from_url(url, decode_responses=True, socket_timeout=5, socket_connect_timeout=5, health_check_interval=15)


class RedisReleaseHeads:
    """Chains and heads. The compare-and-swap is one Lua script, so it is one step for every client."""

    def __init__(self, redis: Redis, *, prefix: str = PREFIX) -> None:
        self._redis = redis
        self._prefix = prefix
        self._scenarios = f"{prefix}:scenarios"
        self._advance = redis.register_script(_ADVANCE)

    async def head(self, scenario: str) -> Release | None:
        """The release that serves now."""
        async with answering("head"):
            release_id: str | None = await self._await(self._redis.get(self._key(scenario, "head")))
            text = await self._hget(self._key(scenario, "releases"), release_id) if release_id else None
        return Release.model_validate_json(text) if text else None

    async def chain(self, scenario: str, *, limit: int = 100) -> list[Release]:
        """The chain, newest first."""
        async with answering("chain"):
            ids: list[str] = await self._await(self._redis.lrange(self._key(scenario, "chain"), 0, limit - 1))
            texts = await self._await(self._redis.hmget(self._key(scenario, "releases"), ids)) if ids else []
        return [Release.model_validate_json(text) for text in texts if text]

    async def release(self, scenario: str, release_id: str) -> Release | None:
        """One release of the chain, or a pending one."""
        async with answering("release"):
            text = await self._hget(self._key(scenario, "releases"), release_id) or await self._hget(
                self._key(scenario, "pending"), release_id
            )
        return Release.model_validate_json(text) if text else None

    async def advance(self, release: Release) -> None:
        """Append and move the head in one step, if the head is the release's parent. A release that is in the chain already is a repeat.

        Raises:
            Conflict: the head is another, or the id is taken by another release. Nothing has changed.
        """
        scenario = release.scenario
        keys = [self._key(scenario, name) for name in ("head", "chain", "releases")]
        async with answering("advance"):
            await self._await(self._redis.sadd(self._scenarios, scenario))
            found = await self._advance(keys=keys, args=[release.parent_id or "", release.release_id, release.model_dump_json()])
        if found:
            raise Conflict(f"release {release.release_id} of {scenario!r} expects the head {release.parent_id}, found {found}")

    async def scenarios(self) -> list[str]:
        """Every scenario that has a head."""
        async with answering("scenarios"):
            names: list[str] = sorted(await self._await(self._redis.smembers(self._scenarios)))
            heads = await self._redis.mget([self._key(name, "head") for name in names]) if names else []
        return [name for name, head in zip(names, heads, strict=True) if head]

    async def put_pending(self, release: Release) -> None:
        """Keep a winner that waits for a person."""
        async with answering("put_pending"):
            await self._await(self._redis.hset(self._key(release.scenario, "pending"), release.release_id, release.model_dump_json()))

    async def pending(self, scenario: str) -> list[Release]:
        """What waits for a person, oldest first."""
        async with answering("pending"):
            texts: list[str] = await self._await(self._redis.hvals(self._key(scenario, "pending")))
        return sorted((Release.model_validate_json(text) for text in texts), key=lambda r: (r.created_at, r.release_id))

    async def drop_pending(self, scenario: str, release_id: str) -> None:
        """Forget a pending release."""
        async with answering("drop_pending"):
            await self._await(self._redis.hdel(self._key(scenario, "pending"), release_id))

    async def _hget(self, key: str, field: str) -> str | None:
        found: str | None = await self._await(self._redis.hget(key, field))
        return found

    @staticmethod
    async def _await(reply: Any) -> Any:
        # The client's stubs give `Awaitable[T] | T`, since its synchronous twin shares them.
        return await reply

    def _key(self, scenario: str, name: str) -> str:
        return f"{self._prefix}:{{{scenario}}}:{name}"
