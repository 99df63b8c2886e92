"""Works in Redis: one key a piece of work, and one set with those that have not ended.

reef:{<scenario>}:work:<work id>  string  Work as JSON; ended works expire
reef:works                        set     "<scenario> <work id>" of works that have not ended
"""

from redis.asyncio import Redis

from reefcommon.heads_redis import answering
from services.publisher.domain.work import Work

_LIVE = "reef:works"


class RedisWorks:
    """Works. A crash between two writes leaves an entry too many in the set of live ones, never one too few."""

    def __init__(self, redis: Redis, *, kept_s: int) -> None:
        self._redis = redis
        self._kept_s = kept_s

    async def get(self, scenario: str, work_id: str) -> Work | None:
        """One piece of work, if it is known."""
        async with answering("work"):
            text = await self._redis.get(_key(scenario, work_id))
        return Work.model_validate_json(text) if text else None

    async def save(self, work: Work) -> None:
        """Make this state durable."""
        member = f"{work.scenario} {work.work_id}"
        async with answering("save work"):
            if work.ended:
                await self._redis.set(_key(work.scenario, work.work_id), work.model_dump_json(), ex=self._kept_s)
                await self._redis.srem(_LIVE, member)
            else:
                await self._redis.sadd(_LIVE, member)
                await self._redis.set(_key(work.scenario, work.work_id), work.model_dump_json())

    async def live(self) -> list[Work]:
        """Every piece of work that has not ended."""
        async with answering("live works"):
            members = await self._redis.smembers(_LIVE)
            keys = [_key(*str(member).split(" ", 1)) for member in sorted(members)]
            texts = await self._redis.mget(keys) if keys else []
        works = [Work.model_validate_json(text) for text in texts if text]
        return [work for work in works if not work.ended]


def _key(scenario: str, work_id: str) -> str:
    return f"reef:{{{scenario}}}:work:{work_id}"
