"""Rate limits: requests a second, exchanges under way, shared among gateways, and what happens while Redis is away."""

import asyncio
import uuid
from typing import Any

import httpx
import pytest

from reefcommon.errors import Unavailable
from services.gateway.domain.rate import NO_LIMIT, Limit, Taken, TokenBucket, duration, rate_headers
from services.gateway.edge.limits import ASK_AGAIN_S, Limits
from services.gateway.edge.redis_buckets import RedisBuckets

from .conftest import CHAT, Answered, Edge, InstantEngines, bearer, edge_of, token


async def chat(edge: Edge, secret: str = "", scenario: str = "default") -> httpx.Response:
    headers = {"x-reef-scenario": scenario, **(bearer(secret) if secret else {})}
    return await edge.http.post("/v1/chat/completions", json=CHAT, headers=headers)


class SharedBuckets:
    """Buckets on a clock of the test's own; `away` as asked."""

    def __init__(self) -> None:
        self.now = 0.0
        self.away = False
        self.looks = 0
        self._buckets: dict[str, TokenBucket] = {}

    async def take(self, name: str, limit: Limit, want: int) -> Taken:
        self.looks += 1
        await asyncio.sleep(0)
        if self.away:
            raise Unavailable("away, as asked")
        bucket = self._buckets.setdefault(name, TokenBucket(float(limit.size), self.now))
        taken = bucket.take(limit, self.now)
        granted = taken.granted
        while granted and granted < want and bucket.take(limit, self.now).granted:
            granted += 1
        return Taken(granted, int(bucket.level), taken.wait_s)


async def test_a_token_that_asks_too_often() -> None:
    """429 with when to come again; what is left is told under OpenAI's names; other tokens are not concerned; nothing was asked upstream."""
    rows = [
        token("busy", "infer", requests_per_s=0.01, burst_requests=3),
        token("other", "infer"),
        token("spent", "read", requests_per_s=0.001),
    ]
    async with edge_of(*rows) as edge:
        answers = [await chat(edge, "busy") for _ in range(4)]
        assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
        assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == [
            "2",
            "1",
            "0",
            "0",
        ]
        assert answers[0].headers["x-ratelimit-limit-requests"] == "3"
        assert answers[0].headers["x-ratelimit-reset-requests"] == "1m40s"
        refused = answers[3]
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert 30 < int(refused.headers["retry-after"]) <= 100
        assert 30_000 < int(refused.headers["retry-after-ms"]) <= 100_000
        assert "retry-after" not in answers[2].headers
        free = await chat(edge, "other")
        assert free.status_code == 200
        assert "x-ratelimit-limit-requests" not in free.headers
        assert len(edge.engines.asked) == len(edge.log.records) == 4
        assert (await edge.http.get("/reef/scenarios", headers=bearer("spent"))).headers[
            "x-ratelimit-remaining-requests"
        ] == "0"
        assert (await edge.http.get("/reef/scenarios", headers=bearer("spent"))).status_code == 429
        assert (await edge.http.get("/healthz", headers=bearer("spent"))).status_code == 200


async def test_a_gateway_without_tokens_counts_by_scenario() -> None:
    """Each scenario has a bucket; names that do not exist share one, so that nobody can make buckets without end."""
    async with edge_of(requests_per_s=0.01, burst_requests=1) as edge:
        assert [
            (await chat(edge, scenario=name)).status_code for name in ("default", "default", "mine")
        ] == [200, 429, 200]
        assert [(await chat(edge, scenario=f"none-{n}")).status_code for n in range(3)] == [
            404,
            429,
            429,
        ]
        limits = edge.gateway.edge.limits
        assert limits is not None
        assert set(limits._bearers) == {"default", "mine", ""}


async def test_without_limits_nobody_counts() -> None:
    """The default: no counting, no header, nothing on the hot path."""
    async with edge_of(token("t", "infer")) as edge:
        assert edge.gateway.edge.limits is None
        assert not [
            name for name in (await chat(edge, "t")).headers if name.startswith("x-ratelimit")
        ]


async def test_exchanges_under_way() -> None:
    """As many as the token may have; the next is 429 at once; a place comes back whichever way an exchange ends."""

    class Slow(InstantEngines):
        gate = asyncio.Event()
        broken = False

        async def open(self, exchange: Any) -> Answered:
            await super().open(exchange)
            await self.gate.wait()
            return Answered(b"", 200) if self.broken else Answered(self.BODY)

    engines = Slow()
    async with edge_of(token("t", "infer", concurrent_requests=2), engines=engines) as edge:
        for engines.broken in (False, True):
            engines.gate.clear()
            engines.asked.clear()
            waiting = [asyncio.create_task(chat(edge, "t")) for _ in range(2)]
            while len(engines.asked) < 2:
                await asyncio.sleep(0)
            refused = await chat(edge, "t")
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            engines.gate.set()
            assert {answer.status_code for answer in await asyncio.gather(*waiting)} == (
                {502} if engines.broken else {200}
            )
        assert (
            await edge.http.post("/v1/chat/completions", content=b"{", headers=bearer("t"))
        ).status_code == 400
        limits = edge.gateway.edge.limits
        assert limits is not None
        assert [row.under_way for row in limits._bearers.values()] == [0]


async def admitted(limits: Limits, limit: Limit, count: int, name: str = "b") -> int:
    """How many of `count` requests at once get through."""
    from services.gateway.domain.access import Grant
    from services.gateway.domain.rate import RateLimited

    grant = Grant(frozenset(), None, name, limit)

    async def one() -> bool:
        try:
            async with limits.hold(grant, "", exchange=False):
                return True
        except RateLimited:
            return False

    return sum(await asyncio.gather(*(one() for _ in range(count))))


async def test_gateways_share_a_bucket_and_ask_seldom() -> None:
    """Two gateways together let through the burst and no more; a lease spares looks; an empty bucket is not asked by every request."""
    shared, limit = SharedBuckets(), Limit(200.0, 400)
    one, two = (Limits(shared, clock=lambda: shared.now) for _ in range(2))
    through = sum([await admitted(gateway, limit, 1) for _ in range(300) for gateway in (one, two)])
    assert through == 400
    assert shared.looks <= 400 / limit.lease + 2
    looks = shared.looks
    assert await admitted(one, limit, 100) == 0
    assert shared.looks == looks
    shared.now += 1.0
    assert (
        sum([await admitted(gateway, limit, 1) for _ in range(300) for gateway in (one, two)])
        == 200
    )


async def test_many_at_once_wait_for_one_look() -> None:
    """What waits is counted into the one look that is under way, or into the next."""
    shared, limit = SharedBuckets(), Limit(1.0, 50)
    assert await admitted(Limits(shared, clock=lambda: shared.now), limit, 80) == 50
    assert shared.looks <= 4


async def test_no_request_fails_because_redis_is_away() -> None:
    """Each gateway counts for itself, with the whole limit, and waits for nothing; when the store is back the bucket is shared again."""
    shared, limit = SharedBuckets(), Limit(1.0, 5)
    one, two = (Limits(shared, clock=lambda: shared.now) for _ in range(2))
    shared.away = True
    assert await admitted(one, limit, 9) == 5
    assert await admitted(two, limit, 9) == 5
    assert shared.looks == 2
    shared.now += ASK_AGAIN_S
    assert await admitted(one, limit, 3) == 1
    await one.stop()
    assert shared.looks == 3
    shared.away = False
    shared.now += ASK_AGAIN_S
    assert await admitted(one, limit, 1) == 1
    await one.stop()
    assert not one.away
    assert await admitted(one, limit, 9) == 5
    await two.stop()


@pytest.mark.redis
async def test_the_bucket_in_redis(redis_url: str) -> None:
    """One script: the burst at once, then what the rate gives, on Redis' own clock; the key goes away by itself."""
    name, limit = f"test-{uuid.uuid4().hex}", Limit(20.0, 8)
    one, two = RedisBuckets(redis_url), RedisBuckets(redis_url)
    try:
        first = await one.take(name, limit, 3)
        assert (first.granted, first.left) == (3, 5)
        second = await two.take(name, limit, 50)
        assert 5 <= second.granted <= 8
        spent = await one.take(name, Limit(0.001, 8), 1)
        assert spent.granted == 0
        assert spent.wait_s > 1
        ttl_ms = await one._redis.pttl(f"reef:rate:{name}")
        assert 0 < ttl_ms <= 86_400_000
        for _ in range(600):
            if (await two.take(name, limit, 1)).granted:
                break
            await asyncio.sleep(0.01)
        else:
            pytest.fail("nothing came back into the bucket")
    finally:
        await one.stop()
        await two.stop()


async def test_redis_that_is_not_there() -> None:
    """Unavailable, not an error of the client library's own; a gateway on it goes on by itself."""
    buckets = RedisBuckets("redis://user:hunter2@127.0.0.1:9/0")
    try:
        with pytest.raises(Unavailable) as error:
            await buckets.take("x", Limit(1.0), 1)
        assert "hunter2" not in str(error.value)
        async with edge_of(
            token("t", "infer", requests_per_s=0.01, burst_requests=2), buckets=buckets
        ) as edge:
            assert [(await chat(edge, "t")).status_code for _ in range(3)] == [200, 200, 429]
            await edge.gateway.edge.limits.stop()  # type: ignore[union-attr]
    finally:
        await buckets.stop()


def test_what_a_client_is_told() -> None:
    """Durations as OpenAI writes them; a limit that states nothing is none."""
    assert [duration(s) for s in (0.0004, 0.12, 1, 1.5, 59.9994, 60, 361)] == [
        "1ms",
        "120ms",
        "1s",
        "1.5s",
        "59.999s",
        "1m0s",
        "6m1s",
    ]
    assert dict(rate_headers(Limit(2.0, 10), 4))[b"x-ratelimit-reset-requests"] == b"3s"
    assert (Limit(0.2).size, Limit(3.0).size, Limit(3.0, 9).size) == (1, 6, 9)
    assert token("t", "infer").grant(NO_LIMIT).limit == NO_LIMIT
    stated = token("t", "infer", requests_per_s=0, concurrent_requests=3)
    assert stated.grant(Limit(5.0, 7, 9)).limit == Limit(0.0, 7, 3)
