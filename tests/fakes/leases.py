"""The lease of a process that is alone."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class SoleHolder:
    """RedisLease without another holder, of any name."""

    token = 0

    def __init__(self, _name: str = "") -> None: ...

    async def verify(self) -> None: ...

    async def taken(self) -> bool:
        return False

    @asynccontextmanager
    async def during(self, *, wait_s: float) -> AsyncIterator[None]:
        yield
