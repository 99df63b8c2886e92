"""ReleaseHeads on Redis 7 or newer, or Valkey.

The keys are a projection of `reef.releases.v1`. If they are lost or damaged, delete them: the
publisher rebuilds them.
"""

# Keys of a scenario share one hash tag, so that the script below also works on a cluster:
#
#     reef:{<scenario>}:head      string  release id
#     reef:{<scenario>}:chain     list    release ids, newest first
#     reef:{<scenario>}:releases  hash    release id -> release as JSON, of the chain
#     reef:{<scenario>}:pending   hash    release id -> release as JSON, that waits for a promotion
#     reef:{<scenario>}:held      string  why its winners wait; from a person, so no projection
#     reef:scenarios              set     scenarios that may have a head

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from reefcommon.errors import Conflict, Damaged, Unavailable
from reefcommon.events import Release

PREFIX = "reef"

# Returns "" if the release is in the chain now, else the id of the head that is there instead.
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


@asynccontextmanager
async def answering(what: str) -> AsyncIterator[None]:
    """Turn errors into Unavailable: the server is away, or refuses work in its present state."""
    # Full, a replica, without its replicas, unable to save, busy: a person or time mends each.
    try:
        yield
    except (RedisError, OSError) as error:
        raise Unavailable(f"Redis does not answer ({what}): {error}") from error


def connect(url: str) -> Redis:
    """Build a client with short time-outs: the bus does the retries."""
    # An error inside the client's parser would leave half an answer on the connection, so bytes
    # that are not UTF-8 become surrogates, which no JSON parser accepts.
    return Redis.from_url(
        url,
        decode_responses=True,
        encoding_errors="surrogateescape",
        socket_timeout=5,
        socket_connect_timeout=5,
        health_check_interval=15,
    )


class RedisReleaseHeads:
    """ReleaseHeads in Redis. Reads raise Damaged if a value is not a release."""

    def __init__(self, redis: Redis, *, prefix: str = PREFIX) -> None:
        # The stubs of the client give `Awaitable[T] | T`: its synchronous twin shares them.
        self._redis: Any = redis
        self._prefix = prefix
        self._scenarios = f"{prefix}:scenarios"
        self._advance = redis.register_script(_ADVANCE)

    async def head(self, scenario: str) -> Release | None:
        async with answering("head"):
            release_id = await self._redis.get(self._key(scenario, "head"))
            if not release_id:
                return None
            text = await self._redis.hget(self._key(scenario, "releases"), release_id)
        return _read(scenario, release_id, text)

    async def chain(self, scenario: str, *, limit: int = 100) -> list[Release]:
        async with answering("chain"):
            ids = await self._redis.lrange(self._key(scenario, "chain"), 0, limit - 1)
            releases = self._key(scenario, "releases")
            texts = await self._redis.hmget(releases, ids) if ids else []
        return [_read(scenario, *item) for item in zip(ids, texts, strict=True)]

    async def release(self, scenario: str, release_id: str) -> Release | None:
        async with answering("release"):
            text = await self._redis.hget(self._key(scenario, "releases"), release_id)
            if text is None:
                text = await self._redis.hget(self._key(scenario, "pending"), release_id)
        return None if text is None else _read(scenario, release_id, text)

    async def advance(self, release: Release) -> None:
        scenario = release.scenario
        keys = [self._key(scenario, name) for name in ("head", "chain", "releases")]
        new = (release.parent_id or "", release.release_id, release.model_dump_json())
        async with answering("advance"):
            await self._redis.sadd(self._scenarios, scenario)
            found = await self._advance(keys=keys, args=new)
        if found:
            raise Conflict(
                f"release {release.release_id} of {scenario!r} expects the head "
                f"{release.parent_id}, found {found}"
            )

    async def scenarios(self) -> list[str]:
        async with answering("scenarios"):
            names = sorted(await self._redis.smembers(self._scenarios))
            keys = [self._key(name, "head") for name in names]
            heads = await self._redis.mget(keys) if keys else []
        return [name for name, head in zip(names, heads, strict=True) if head]

    async def put_pending(self, release: Release) -> None:
        key = self._key(release.scenario, "pending")
        async with answering("put_pending"):
            await self._redis.hset(key, release.release_id, release.model_dump_json())

    async def pending(self, scenario: str) -> list[Release]:
        async with answering("pending"):
            texts = await self._redis.hgetall(self._key(scenario, "pending"))
        releases = [_read(scenario, *item) for item in texts.items()]
        return sorted(releases, key=attrgetter("created_at", "release_id"))

    async def drop_pending(self, scenario: str, release_id: str) -> None:
        async with answering("drop_pending"):
            await self._redis.hdel(self._key(scenario, "pending"), release_id)

    async def hold(self, scenario: str, reason: str | None) -> None:
        key = self._key(scenario, "held")
        async with answering("hold"):
            await (self._redis.delete(key) if reason is None else self._redis.set(key, reason))

    async def held(self, scenario: str) -> str | None:
        async with answering("held"):
            found: str | None = await self._redis.get(self._key(scenario, "held"))
        return found

    async def forget(self, scenario: str) -> None:
        """Delete a scenario, so that it can be rebuilt."""
        names = ("head", "chain", "releases", "pending")
        async with answering("forget"):
            await self._redis.delete(*(self._key(scenario, name) for name in names))

    def _key(self, scenario: str, name: str) -> str:
        return f"{self._prefix}:{{{scenario}}}:{name}"


def _read(scenario: str, release_id: str, text: str | None) -> Release:
    what = f"release {release_id!a} of scenario {scenario!a} in Redis is damaged"
    mended = "the publisher rebuilds the scenario's heads from the release log"
    if text is None:
        raise Damaged(f"{what}: it is named, and not there; {mended}")
    try:
        release = Release.model_validate_json(text.encode())
    except ValueError as error:  # pydantic's, and that of surrogates
        raise Damaged(f"{what}: no JSON of a release; {mended}") from error
    if (release.scenario, release.release_id) != (scenario, release_id):
        says = f"{release.release_id!a} of {release.scenario!a}"
        raise Damaged(f"{what}: it says that it is {says}; {mended}")
    return release
