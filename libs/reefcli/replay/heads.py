"""The release heads a second time: the publisher's own rebuild, under other keys."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from redis.asyncio import Redis

from reefcommon.events import Release
from reefkit.kafka_topic_log import KafkaTopicLog
from reefkit.redis_heads import PREFIX, RedisReleaseHeads, answering, connect
from services.publisher.rebuilding import rebuild

# No limit: a chain is compared whole.
WHOLE = 1_000_000_000


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
            one, two = (
                await self.running.chain(scenario, limit=WHOLE),
                await self.replayed.chain(scenario, limit=WHOLE),
            )
            releases += len(two)
            found += _differences(scenario, "chain", one, two)
            found += _differences(
                scenario,
                "pending",
                await self.running.pending(scenario),
                await self.replayed.pending(scenario),
            )
            if not found and [r.release_id for r in one] != [r.release_id for r in two]:
                found.append(
                    HeadDifference(scenario, "order of the chain", _order(one), _order(two))
                )
            head, again = (
                _id(await self.running.head(scenario)),
                _id(await self.replayed.head(scenario)),
            )
            if head != again:
                found.append(HeadDifference(scenario, "head", head, again))
        return releases, found


def _differences(
    scenario: str, what: str, running: list[Release], replayed: list[Release]
) -> list[HeadDifference]:
    one = {release.release_id: release.model_dump_json() for release in running}
    two = {release.release_id: release.model_dump_json() for release in replayed}
    return [
        HeadDifference(scenario, f"{what}: {release_id}", one.get(release_id), two.get(release_id))
        for release_id in sorted(one.keys() | two.keys())
        if one.get(release_id) != two.get(release_id)
    ]


def _id(release: Release | None) -> str | None:
    return None if release is None else release.release_id


def _order(chain: list[Release]) -> str:
    return ", ".join(release.release_id for release in chain[:20])


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
