"""What the evaluator keeps in Redis, so that any of its processes may go on.

reef:{<scenario>}:heldout       hash    sample id -> HeldOut as JSON; the newest are kept
reef:{<scenario>}:heldout-ids   zset    sample id by the time of its record
reef:{<scenario>}:waiting       hash    candidate id -> CandidateProposed as JSON: they wait for evidence
reef:waiting                    set     scenarios with candidates that may wait
"""

from redis.asyncio import Redis

from reefcommon.events import CandidateProposed
from reefkit.redis_heads import answering
from services.evaluator.domain.replay import KEPT, HeldOut

_WAITING = "reef:waiting"

# The hash and its order change in one step, so that the bound holds for every reader.
_ADD = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
for _, old in ipairs(redis.call('ZRANGE', KEYS[2], 0, -tonumber(ARGV[4]) - 1)) do
  redis.call('HDEL', KEYS[1], old)
  redis.call('ZREM', KEYS[2], old)
end
"""


class RedisEvidence:
    """Held-out samples and candidates that wait for them. Raises Unavailable where Redis is away."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._add = redis.register_script(_ADD)

    async def add(self, scenario: str, sample: HeldOut, at_s: float) -> None:
        """Keep a held-out sample; the oldest leaves where there are too many. A repeat has no further effect."""
        keys = [_key(scenario, "heldout"), _key(scenario, "heldout-ids")]
        async with answering("held-out sample"):
            await self._add(
                keys=keys, args=[sample.sample_id, sample.model_dump_json(), at_s, KEPT]
            )

    async def samples(self, scenario: str) -> list[HeldOut]:
        """The held-out samples of a scenario, in the order of their ids."""
        async with answering("held-out samples"):
            texts = await self._redis.hvals(_key(scenario, "heldout"))
        return sorted(
            (HeldOut.model_validate_json(text) for text in texts),
            key=lambda sample: sample.sample_id,
        )

    async def wait(self, candidate: CandidateProposed) -> None:
        """Keep a candidate until there is evidence."""
        async with answering("waiting candidate"):
            await self._redis.sadd(_WAITING, candidate.scenario)
            await self._redis.hset(
                _key(candidate.scenario, "waiting"), candidate.event_id, candidate.model_dump_json()
            )

    async def waiting(self) -> list[CandidateProposed]:
        """Every candidate that waits, the newest of a scenario first: it has learned what the older ones had."""
        async with answering("waiting candidates"):
            scenarios = sorted(str(name) for name in await self._redis.smembers(_WAITING))
            texts = [
                text
                for name in scenarios
                for text in await self._redis.hvals(_key(name, "waiting"))
            ]
        return sorted(
            (CandidateProposed.model_validate_json(text) for text in texts),
            key=lambda c: c.at,
            reverse=True,
        )

    async def done(self, candidate: CandidateProposed) -> None:
        """This candidate has its verdict."""
        async with answering("waiting candidate"):
            await self._redis.hdel(_key(candidate.scenario, "waiting"), candidate.event_id)


def _key(scenario: str, name: str) -> str:
    return f"reef:{{{scenario}}}:{name}"
