"""The end of a run: the loop has gone on after the last fault, and then nothing is under way any
more.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime

import aiohttp

from tests.chaos import collect
from tests.chaos.recovery import SERVICES
from tests.chaos.stack import ReefStack

QUIET_WITHIN_S = 150.0


@dataclass(frozen=True)
class Settling:
    """`tell` hears what came of the waiting."""

    stack: ReefStack
    http: aiohttp.ClientSession
    tell: Callable[[str], None]

    async def learns_on(self, since: float) -> None:
        """Wait for a step and a release decision after `since`, a Unix time, as long as there
        may still come one.
        """
        deadline = time.monotonic() + QUIET_WITHIN_S
        wanted = {"steps": "at", "releases": "created_at"}
        while wanted and time.monotonic() < deadline:
            for what in tuple(wanted):
                if await self._newest(what) > since:
                    wanted.pop(what)
            await asyncio.sleep(0.5)
        self.tell(
            "the loop went on"
            if not wanted
            else f"no new {' and '.join(wanted)} within {QUIET_WITHIN_S:.0f} s"
        )

    async def _newest(self, what: str) -> float:
        service, path, field_ = {
            "steps": ("experience", "/scenarios/default/steps", "at"),
            "releases": ("gateway", "/reef/scenarios/default/releases", "created_at"),
        }[what]
        with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with self.http.get(
                self.stack.url(service) + path, params={"limit": 1}
            ) as response:
                rows = (await response.json())["data"] if response.status == 200 else []
                if rows:
                    return datetime.fromisoformat(rows[0][field_]).timestamp()
        return 0.0

    async def quiet(self, away_s: float) -> None:
        """Nothing under way any more: no lag, no live work, and no event on any topic for a
        while. `away_s`: the longest outage, seconds.
        """
        deadline, still = time.monotonic() + QUIET_WITHIN_S + away_s, 0
        before: object = None
        while still < 4 and time.monotonic() < deadline:
            now = await self._under_way()
            still = still + 1 if now == before and now[0] == 0 and now[1] == 0 else 0
            before = now
            await asyncio.sleep(0.7)
        self.tell("quiet" if still >= 4 else f"not quiet: {before}")

    async def _under_way(self) -> tuple[int, int, str]:
        lag, doing = 0, []
        for name in SERVICES[1:]:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with self.http.get(self.stack.url(name) + "/status") as response:
                    status = await response.json()
                    lag += sum(status["lag"].values())
                    doing.append(str(status.get("bindings") or status.get("learning") or ""))
        works: Awaitable[int] = collect.live_works(self.stack.state.urls["redis"])
        return lag, await works, "".join(doing)
