"""Token buckets, and their state under OpenAI's header names."""

import math
from dataclasses import dataclass

from services.gateway.domain.errors import ApiError


@dataclass(frozen=True, slots=True)
class Limit:
    """Requests a second (`burst` at once) and exchanges under way. 0: no limit."""

    per_s: float = 0.0
    burst: int = 0
    concurrent: int = 0

    @property
    def counts(self) -> bool:
        """True if there is any limit."""
        return bool(self.per_s or self.concurrent)

    @property
    def size(self) -> int:
        """A full bucket: `burst`, else two seconds' worth, at least 1."""
        return self.burst or max(1, math.ceil(self.per_s * 2))

    @property
    def lease(self) -> int:
        """A gateway's lease: a twentieth of a second's requests."""
        return max(1, min(int(self.per_s / 20), self.size // 4))


NO_LIMIT = Limit()


@dataclass(frozen=True, slots=True)
class Taken:
    """The result: requests granted, requests left, seconds until the next."""

    granted: int
    left: int
    wait_s: float


@dataclass(slots=True)
class TokenBucket:
    """A bucket in this process. Starts full."""

    level: float
    at: float

    def take(self, limit: Limit, now: float) -> Taken:
        """Take a request, if any. `now`: seconds of a monotonic clock."""
        self.level = min(float(limit.size), self.level + max(0.0, now - self.at) * limit.per_s)
        self.at = now
        if self.level < 1:
            return Taken(0, 0, (1 - self.level) / limit.per_s)
        self.level -= 1
        return Taken(1, int(self.level), 0.0)


class RateLimited(ApiError):
    """429: too many requests. `wait_s`: when to come again."""

    def __init__(self, message: str, extra: list[tuple[bytes, bytes]], wait_s: float) -> None:
        again_s = max(1, math.ceil(wait_s))
        super().__init__(429, message, code="rate_limit_exceeded", retry_after_s=again_s)
        self._extra = [*extra, (b"retry-after-ms", b"%d" % max(1, math.ceil(wait_s * 1000)))]

    def headers(self) -> list[tuple[bytes, bytes]]:
        return [*super().headers(), *self._extra]


def rate_headers(limit: Limit, left: int) -> list[tuple[bytes, bytes]]:
    """Return `x-ratelimit-*` headers as OpenAI names them; `reset`: until the bucket is full."""
    reset_s = (limit.size - left) / limit.per_s
    return [
        (b"x-ratelimit-limit-requests", b"%d" % limit.size),
        (b"x-ratelimit-remaining-requests", b"%d" % left),
        (b"x-ratelimit-reset-requests", duration(reset_s).encode()),
    ]


def duration(seconds: float) -> str:
    """Format seconds as OpenAI does: `120ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}m{rest}s"
