"""The release heads a second time: the publisher's own rebuild, under other keys."""

from redis.asyncio import Redis

from reefkit.kafka_topic_log import KafkaTopicLog
from reefkit.redis_heads import PREFIX, RedisReleaseHeads, answering, connect
from services.publisher.rebuilding import rebuild

# No limit: a chain is compared whole.
WHOLE = 1_000_000_000
_ORDER = "order of the chain"


Differences = dict[str, dict[str, str | None]]
"""Name of a release, or of a place in a chain -> its value on each side."""


async def compare(redis_url: str, log: KafkaTopicLog, mark: str) -> tuple[int, Differences]:
    """Return the number of releases in the log, and the differences of heads and chains.

    The second set of heads lies under keys with `mark`, and is removed. Raises Unavailable.
    """
    prefix = f"{PREFIX}-replay-{mark}"
    async with connect(redis_url) as redis:
        running, replayed = RedisReleaseHeads(redis), RedisReleaseHeads(redis, prefix=prefix)
        await _clear(redis, prefix)  # what a replay that was killed has left
        await rebuild(log, replayed)
        found: Differences = {}
        releases = 0
        for scenario in sorted({*await running.scenarios(), *await replayed.scenarios()}):
            one, two = await _facts(running, scenario), await _facts(replayed, scenario)
            releases += sum(name.startswith("chain: ") for name in two)
            names = [name for name in sorted({*one, *two}) if one.get(name) != two.get(name)]
            # A release that is missing changes the order, too: that is told once.
            if len(names) > 1 and _ORDER in names:
                names.remove(_ORDER)
            for name in names:
                found[f"{scenario} {name}"] = {"running": one.get(name), "replayed": two.get(name)}
        await _clear(redis, prefix)
        return releases, found


async def _facts(heads: RedisReleaseHeads, scenario: str) -> dict[str, str | None]:
    """The comparable facts of a scenario: each release, the order of the chain, the head."""
    chain, head = await heads.chain(scenario, limit=WHOLE), await heads.head(scenario)
    pending = await heads.pending(scenario)
    return {
        **{f"chain: {release.release_id}": release.model_dump_json() for release in chain},
        **{f"pending: {release.release_id}": release.model_dump_json() for release in pending},
        _ORDER: ", ".join(release.release_id for release in chain),
        "head": None if head is None else head.release_id,
    }


async def _clear(redis: Redis, prefix: str) -> None:
    async with answering("clear what a replay left"):
        async for key in redis.scan_iter(match=f"{prefix}:*", count=1000):
            await redis.delete(key)


async def reachable(redis_url: str) -> None:
    """Raise Unavailable if Redis does not answer."""
    async with connect(redis_url) as redis:
        await RedisReleaseHeads(redis).scenarios()
