"""Works in Redis: one key a piece of work, and one set with those that have not ended.

reef:{<scenario>}:work:<work id>  string  Work as JSON; ended works expire
reef:works                        set     "<scenario> <work id>" of works that have not ended
"""

import structlog
from redis.asyncio import Redis

from reefkit.redis_heads import answering
from services.publisher.domain.work import Work

log = structlog.get_logger()

_LIVE = "reef:works"


class RedisWorks:
    """Works. A crash between two writes leaves an entry too many in the set of live ones, never one too few.

    One that the disk has damaged is set aside and unknown from then on: what caused it comes again, since it was not finished."""

    def __init__(self, redis: Redis, *, kept_s: int) -> None:
        self._redis = redis
        self._kept_s = kept_s

    async def get(self, scenario: str, work_id: str) -> Work | None:
        """One piece of work, if it is known."""
        async with answering("work"):
            text = await self._redis.get(_key(scenario, work_id))
        return await self._read(scenario, work_id, text)

    async def save(self, work: Work) -> None:
        """Make this state durable."""
        member = f"{work.scenario} {work.work_id}"
        async with answering("save work"):
            if work.ended:
                await self._redis.set(
                    _key(work.scenario, work.work_id), work.model_dump_json(), ex=self._kept_s
                )
                await self._redis.srem(_LIVE, member)
            else:
                await self._redis.sadd(_LIVE, member)
                await self._redis.set(_key(work.scenario, work.work_id), work.model_dump_json())

    async def live(self) -> list[Work]:
        """Every piece of work that has not ended."""
        async with answering("live works"):
            members = await self._redis.smembers(_LIVE)
            names = [
                (scenario, work_id)
                for scenario, _, work_id in (
                    str(member).partition(" ") for member in sorted(members)
                )
            ]
            texts = await self._redis.mget([_key(*name) for name in names]) if names else []
        works = [await self._read(*name, text) for name, text in zip(names, texts, strict=True)]
        return [work for work in works if work is not None and not work.ended]

    async def _read(self, scenario: str, work_id: str, text: bytes | str | None) -> Work | None:
        if text is None:
            return None
        try:
            work = Work.model_validate_json(str(text).encode())
        except ValueError:  # pydantic's, and that of surrogates
            work = None
        if work is not None and (work.scenario, work.work_id) == (scenario, work_id):
            return work
        key = _key(scenario, work_id)
        log.error(
            "work_damaged",
            scenario=ascii(scenario),
            work=ascii(work_id),
            kept_as=ascii(f"{key}:damaged"),
        )
        async with answering("damaged work"):
            await self._redis.copy(key, f"{key}:damaged", replace=True)
            await self._redis.delete(key)
            await self._redis.srem(_LIVE, f"{scenario} {work_id}")
        return None


def _key(scenario: str, work_id: str) -> str:
    return f"reef:{{{scenario}}}:work:{work_id}"
