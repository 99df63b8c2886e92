"""The release heads a second time: the publisher's own rebuild, under other keys."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis.asyncio import Redis

from reefkit.kafka_topic_log import KafkaTopicLog
from reefkit.redis_heads import PREFIX, RedisReleaseHeads, answering, connect
from services.publisher.rebuilding import rebuild

# No limit: a chain is compared whole.
WHOLE = 1_000_000_000
_ORDER = "order of the chain"


@dataclass(frozen=True, slots=True)
class HeadDifference:
    """A release, or a place in a chain, that is not the same on both sides."""

    scenario: str
    what: str
    running: str | None
    replayed: str | None


@dataclass(frozen=True, slots=True)
class Heads:
    """Both sets of heads."""

    running: RedisReleaseHeads
    replayed: RedisReleaseHeads
    log: KafkaTopicLog

    async def compare(self) -> tuple[int, list[HeadDifference]]:
        """Return the number of releases in the log, and the differences of heads and chains."""
        await rebuild(self.log, self.replayed)
        found: list[HeadDifference] = []
        releases = 0
        for scenario in sorted({*await self.running.scenarios(), *await self.replayed.scenarios()}):
            one, two = await _facts(self.running, scenario), await _facts(self.replayed, scenario)
            releases += sum(name.startswith("chain: ") for name in two)
            names = [name for name in sorted({*one, *two}) if one.get(name) != two.get(name)]
            # A release that is missing changes the order, too: that is told once.
            if len(names) > 1 and _ORDER in names:
                names.remove(_ORDER)
            found += [HeadDifference(scenario, n, one.get(n), two.get(n)) for n in names]
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


@asynccontextmanager
async def open_heads(redis_url: str, log: KafkaTopicLog, mark: str) -> AsyncIterator[Heads]:
    """Open both sets of heads; those of the replay are removed at the end. Raises Unavailable."""
    prefix = f"{PREFIX}-replay-{mark}"
    redis = connect(redis_url)
    try:
        await _clear(redis, prefix)  # what a replay that was killed has left
        yield Heads(
            RedisReleaseHeads(redis),
            RedisReleaseHeads(redis, prefix=prefix),
            log,
        )
        await _clear(redis, prefix)
    finally:
        await redis.aclose()


async def _clear(redis: Redis, prefix: str) -> None:
    async with answering("clear what a replay left"):
        async for key in redis.scan_iter(match=f"{prefix}:*", count=1000):
            await redis.delete(key)


async def reachable(redis_url: str) -> None:
    """Raise Unavailable if Redis does not answer."""
    redis = connect(redis_url)
    try:
        await RedisReleaseHeads(redis).scenarios()
    finally:
        await redis.aclose()
