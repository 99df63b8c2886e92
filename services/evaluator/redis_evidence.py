"""Evidence in Redis, shared by all processes of the evaluator."""

# reef:{<scenario>}:heldout            hash  sample id -> HeldOut as JSON; the newest are kept
# reef:{<scenario>}:heldout-ids        zset  sample id by the time of its record
# reef:{<scenario>}:scores:<weights>   hash  sample id -> mean log-probability; expires unless used
# reef:{<scenario>}:waiting            hash  candidate id -> CandidateProposed as JSON
# reef:{<scenario>}:judged:<head>      set   ids of the candidates that were compared with a head
# reef:{<scenario>}:promoted           hash  task id -> PromotedTask as JSON
# reef:{<scenario>}:promoted-clients   hash  client -> number of its promoted tasks
# reef:{<scenario>}:rechecks           hash  head -> number of its rechecks
# reef:waiting                         set   scenarios with candidates that may wait
# reef:judged-restored                       exists if candidates and verdicts of the log are here

from redis.asyncio import Redis

from reefcommon.events import CandidateProposed, Evaluation, Release
from reefkit.redis_heads import answering
from reefkit.redis_lease import RedisLease
from services.evaluator.domain.promotion import PromotedTask
from services.evaluator.domain.replay import KEPT, HeldOut

_WAITING = "reef:waiting"
_RESTORED = "reef:judged-restored"
_SCORES_KEPT_S = 7 * 24 * 3600

# The hash and its order change in one step, so that the bound holds for every reader.
_ADD = """
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], ARGV[3], ARGV[1])
for _, old in ipairs(redis.call('ZRANGE', KEYS[2], 0, -tonumber(ARGV[4]) - 1)) do
  redis.call('HDEL', KEYS[1], old)
  redis.call('ZREM', KEYS[2], old)
end
"""

_PROMOTE = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then return 0 end
if redis.call('HLEN', KEYS[1]) >= tonumber(ARGV[4]) then return 0 end
if tonumber(redis.call('HGET', KEYS[2], ARGV[3]) or '0') >= tonumber(ARGV[5]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('HINCRBY', KEYS[2], ARGV[3], 1)
return 1
"""


class RedisEvidence:
    """EvidenceStore on Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._add = redis.register_script(_ADD)
        self._promote = redis.register_script(_PROMOTE)

    async def add(self, scenario: str, sample: HeldOut, at_s: float) -> None:
        keys = [_key(scenario, "heldout"), _key(scenario, "heldout-ids")]
        args: list[str | float] = [sample.sample_id, sample.model_dump_json(), at_s, KEPT]
        async with answering("held-out sample"):
            await self._add(keys=keys, args=args)

    async def samples(self, scenario: str) -> list[HeldOut]:
        async with answering("held-out samples"):
            texts = await self._redis.hvals(_key(scenario, "heldout"))
        samples = [HeldOut.model_validate_json(text) for text in texts]
        return sorted(samples, key=lambda sample: sample.sample_id)

    async def scores(self, scenario: str, weights: str) -> dict[str, float]:
        key = _key(scenario, f"scores:{weights}")
        async with answering("scores"):
            known = await self._redis.hgetall(key)
            await self._redis.expire(key, _SCORES_KEPT_S)
        return {str(sample_id): float(score) for sample_id, score in known.items()}

    async def put_score(self, scenario: str, weights: str, sample_id: str, score: float) -> None:
        async with answering("score"):
            await self._redis.hset(_key(scenario, f"scores:{weights}"), sample_id, repr(score))

    async def wait(self, candidate: CandidateProposed) -> None:
        async with answering("waiting candidate"):
            await self._redis.sadd(_WAITING, candidate.scenario)
            await self._redis.hset(
                _key(candidate.scenario, "waiting"), candidate.event_id, candidate.model_dump_json()
            )

    async def waiting(self, scenario: str) -> list[CandidateProposed]:
        async with answering("waiting candidates"):
            texts = await self._redis.hvals(_key(scenario, "waiting"))
        candidates = [CandidateProposed.model_validate_json(text) for text in texts]
        return sorted(candidates, key=lambda candidate: candidate.at, reverse=True)

    async def waiting_scenarios(self) -> list[str]:
        async with answering("waiting scenarios"):
            return sorted(str(name) for name in await self._redis.smembers(_WAITING))

    async def compared(self, candidate: CandidateProposed, evaluation: Evaluation) -> None:
        if evaluation.p_value is None:
            return
        key = _key(candidate.scenario, f"judged:{evaluation.head_release_id}")
        async with answering("judged candidate"):
            await self._redis.sadd(key, candidate.event_id)

    async def others_compared(self, candidate: CandidateProposed, head: Release) -> int:
        async with answering("judged candidates"):
            key = _key(candidate.scenario, f"judged:{head.release_id}")
            return len(await self._redis.smembers(key) - {candidate.event_id})

    async def promote(
        self, scenario: str, task: PromotedTask, at_most: int, per_client: int
    ) -> bool:
        keys = [_key(scenario, "promoted"), _key(scenario, "promoted-clients")]
        args: list[str | int] = [task.id, task.model_dump_json(), task.client, at_most, per_client]
        async with answering("promoted task"):
            return bool(await self._promote(keys=keys, args=args))

    async def promoted(self, scenario: str) -> list[PromotedTask]:
        async with answering("promoted tasks"):
            texts = await self._redis.hvals(_key(scenario, "promoted"))
        tasks = [PromotedTask.model_validate_json(text) for text in texts]
        return sorted(tasks, key=lambda task: task.id)

    async def compared_with(self, scenario: str, head_id: str) -> int:
        async with answering("judged candidates"):
            return int(await self._redis.scard(_key(scenario, f"judged:{head_id}")))

    async def rechecks(self, scenario: str, head_id: str) -> int:
        async with answering("rechecks"):
            return int(await self._redis.hget(_key(scenario, "rechecks"), head_id) or 0)

    async def set_rechecks(self, scenario: str, head_id: str, count: int) -> None:
        async with answering("rechecks"):
            await self._redis.hset(_key(scenario, "rechecks"), head_id, str(count))

    async def done(self, candidate: CandidateProposed) -> None:
        async with answering("waiting candidate"):
            await self._redis.hdel(_key(candidate.scenario, "waiting"), candidate.event_id)

    async def restored(self) -> bool:
        async with answering("restored"):
            return bool(await self._redis.exists(_RESTORED))

    async def set_restored(self) -> None:
        async with answering("restored"):
            await self._redis.set(_RESTORED, 1)


def trials_lease(redis: Redis, scenario: str) -> RedisLease:
    """Return the right to try the candidates of a scenario."""
    return RedisLease(redis, f"trials:{scenario}")


def _key(scenario: str, name: str) -> str:
    return f"reef:{{{scenario}}}:{name}"
