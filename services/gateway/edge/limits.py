"""Rate limits: a bucket of requests a second for all gateways, and exchanges under way.

A gateway leases a few requests at once. If the store is away, it applies the whole limit alone.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from reefcommon.errors import Unavailable
from services.gateway import metrics
from services.gateway.domain.access import Grant
from services.gateway.domain.rate import Limit, RateLimited, Taken, TokenBucket, rate_headers

log = structlog.get_logger()

Headers = list[tuple[bytes, bytes]]
# a store that was away is asked again after this time, beside a request and not in its way
ASK_AGAIN_S = 1.0


class Buckets(Protocol):
    """Token buckets that all gateways share."""

    async def take(self, name: str, limit: Limit, want: int) -> Taken:
        """Take up to `want` requests. Raises Unavailable."""


@dataclass(slots=True)
class _Bearer:
    own: TokenBucket
    leased: int = 0
    left: int = 0
    empty_until: float = 0.0
    under_way: int = 0
    waiting: int = 0
    asking: asyncio.Task[None] | None = None


@dataclass
class Limits:
    """Admits requests. `shared` is None if there is one gateway only."""

    shared: Buckets | None = None
    clock: Callable[[], float] = time.monotonic
    _bearers: dict[str, _Bearer] = field(default_factory=dict)
    _ask_at: float = 0.0
    away: bool = False

    @asynccontextmanager
    async def hold(self, grant: Grant, fallback: str, *, exchange: bool) -> AsyncIterator[Headers]:
        """Admit a request and count it while it lasts. Yields the rest of the limit as headers.

        `fallback` groups requests if there are no tokens. `exchange`: count it as under way.

        Raises:
            RateLimited: 429.
        """
        limit = grant.limit
        if not limit.counts:
            yield []
            return
        name = grant.bearer or fallback
        bearer = self._bearers.get(name)
        if bearer is None:
            own = TokenBucket(float(limit.size), self.clock())
            bearer = self._bearers[name] = _Bearer(own, left=limit.size)
        headers = await self._begin(name, bearer, limit) if limit.per_s else []
        if not (exchange and limit.concurrent):
            yield headers
            return
        if bearer.under_way >= limit.concurrent:
            metrics.LIMITED.labels("concurrent").inc()
            words = f"This token has {bearer.under_way} exchanges under way, its limit."
            raise RateLimited(words, headers, 1.0)
        bearer.under_way += 1
        try:
            yield headers
        finally:
            bearer.under_way -= 1

    async def _begin(self, name: str, bearer: _Bearer, limit: Limit) -> Headers:
        taken = await self._take(name, bearer, limit)
        headers = rate_headers(limit, taken.left)
        if not taken.granted:
            metrics.LIMITED.labels("rate").inc()
            message = (
                f"This token may begin {limit.per_s:g} requests a second, {limit.size} at once. "
                f"Come again in {taken.wait_s:.2f} s."
            )
            raise RateLimited(message, headers, taken.wait_s)
        return headers

    async def _take(self, name: str, bearer: _Bearer, limit: Limit) -> Taken:
        if self.shared is None:
            return bearer.own.take(limit, self.clock())
        while True:
            if bearer.leased:
                bearer.leased -= 1
                return Taken(1, bearer.left + bearer.leased, 0.0)
            now = self.clock()
            if self.away:
                if now >= self._ask_at and bearer.asking is None:
                    self._ask(name, bearer, limit)
                return bearer.own.take(limit, now)
            if now < bearer.empty_until:
                return Taken(0, 0, bearer.empty_until - now)
            bearer.waiting += 1
            try:
                await asyncio.shield(bearer.asking or self._ask(name, bearer, limit))
            finally:
                bearer.waiting -= 1

    def _ask(self, name: str, bearer: _Bearer, limit: Limit) -> asyncio.Task[None]:
        # one look at the shared bucket serves all requests that wait
        self._ask_at = self.clock() + ASK_AGAIN_S
        bearer.asking = asyncio.get_running_loop().create_task(self._refill(name, bearer, limit))
        return bearer.asking

    async def _refill(self, name: str, bearer: _Bearer, limit: Limit) -> None:
        assert self.shared is not None
        try:
            taken = await self.shared.take(name, limit, max(limit.lease, bearer.waiting))
        except Unavailable as error:
            if not self.away:
                log.warning("rate_limits_are_local", reason=str(error))
            self._is_away(away=True)
            return
        finally:
            bearer.asking = None
        if self.away:
            log.info("rate_limits_are_shared")
        self._is_away(away=False)
        bearer.leased += taken.granted
        bearer.left = taken.left
        if not taken.granted:
            bearer.empty_until = self.clock() + taken.wait_s

    def _is_away(self, *, away: bool) -> None:
        self.away = away
        metrics.LIMITS_LOCAL.set(int(away))

    async def stop(self) -> None:
        await asyncio.gather(*filter(None, (bearer.asking for bearer in self._bearers.values())))
