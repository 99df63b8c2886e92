"""Works in Redis: a key for each, and a set of the unfinished."""

# reef:{<scenario>}:work:<work id>  string  Work as JSON; ended works expire
# reef:works                        set     "<scenario> <work id>" of works that have not ended

import structlog
from redis.asyncio import Redis

from reefkit.redis_heads import answering
from services.publisher.domain.work import Work

log = structlog.get_logger()

_LIVE = "reef:works"


class RedisWorks:
    """Works on Redis. A work that cannot be read is unknown: its event is delivered again."""

    def __init__(self, redis: Redis, *, kept_s: int) -> None:
        self._redis = redis
        self._kept_s = kept_s

    async def get(self, scenario: str, work_id: str) -> Work | None:
        async with answering("work"):
            return _read(await self._redis.get(_key(scenario, work_id)))

    async def save(self, work: Work) -> None:
        member, key = f"{work.scenario} {work.work_id}", _key(work.scenario, work.work_id)
        # A crash between two writes leaves an entry too many in the set, never one too few.
        async with answering("save work"):
            if work.ended:
                await self._redis.set(key, work.model_dump_json(), ex=self._kept_s)
                await self._redis.srem(_LIVE, member)
            else:
                await self._redis.sadd(_LIVE, member)
                await self._redis.set(key, work.model_dump_json())

    async def live(self) -> list[Work]:
        async with answering("live works"):
            members = sorted(str(member) for member in await self._redis.smembers(_LIVE))
            keys = [_key(*member.split(" ", 1)) for member in members]
            texts = await self._redis.mget(keys) if keys else []
        works = [_read(text) for text in texts]
        return [work for work in works if work is not None and not work.ended]


def _read(text: bytes | str | None) -> Work | None:
    if text is None:
        return None
    try:
        return Work.model_validate_json(str(text).encode())
    except ValueError as error:  # pydantic's, and that of surrogates
        log.error("work_unreadable", reason=str(error))
        return None


def _key(scenario: str, work_id: str) -> str:
    return f"reef:{{{scenario}}}:work:{work_id}"
