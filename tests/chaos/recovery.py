"""Whether it goes on by itself: every service ready, and a fresh exchange with a fresh report
has become a sample.
"""

import asyncio
import contextlib
import time
from dataclasses import dataclass

import aiohttp

from tests.chaos.load import Book, Load, Turn
from tests.chaos.stack import ReefStack, StackDied

SERVICES = ("gateway", "experience", "trainer", "harness", "evaluator", "publisher")
RECOVER_WITHIN_S = 120.0
LOOK_S = 0.1


@dataclass(frozen=True)
class Recovery:
    """`probe` asks and reports as a client does, into `book`."""

    stack: ReefStack
    http: aiohttp.ClientSession
    probe: Load
    book: Book

    async def recovered(
        self,
        parts: tuple[str, ...],
        since: float,
        ready: dict[str, float],
        killed: dict[str, float] | None = None,
        away_s: float = 0.0,
    ) -> str:
        """Empty once every service is ready and a fresh exchange with a fresh report has become
        a sample; else what is missing. What came while a part was away, `away_s` seconds, is
        handled before what is fresh.
        """
        deadline = time.monotonic() + RECOVER_WITHIN_S + away_s
        killed = killed or {}
        why = "nothing was looked at"
        while time.monotonic() < deadline:
            self.stack.look()
            reasons = await self._unready()
            for part in parts:
                if part not in reasons and part not in ready and self.stack.find(part) is not None:
                    ready[part] = time.time() - killed.get(part, since)
            if not reasons:
                why = await self._probe_sample(deadline)
                if not why:
                    return ""
            else:
                why = "; ".join(f"{part}: {reason}" for part, reason in reasons.items())
            await asyncio.sleep(LOOK_S)
        return why

    async def _unready(self) -> dict[str, str]:
        names = (*SERVICES, "engine")
        reasons = await asyncio.gather(*(self._look_at(name) for name in names))
        found = {name: reason for name, reason in zip(names, reasons, strict=True) if reason}
        state = self.stack.state
        return found | {
            part: "not started" for part in state.planned if self.stack.find(part) is None
        }

    async def _look_at(self, name: str) -> str:
        try:
            async with self.http.get(
                self.stack.url(name) + ("/health" if name == "engine" else "/readyz")
            ) as response:
                return "" if response.status == 200 else (await response.text())[:300]
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return repr(error)[:200]

    async def _probe_sample(self, deadline: float) -> str:
        """One exchange, one report on it, and the sample that comes of it; what went wrong, else
        empty.
        """
        name = f"probe-{len(self.book.answers)}"
        turn = Turn(
            name, 0, [{"role": "user", "content": f"probe {name}"}], name, "", False, False, 1
        )
        answer = await self.probe.ask(self.http, turn)
        if not answer.complete:
            return f"a request fails: {answer.status} {answer.error}"
        report = await self.probe.report(self.http, (answer.receipt,), 0.5)
        if report.status != 202:
            return f"a report fails: {report.status} {report.error}"
        while time.monotonic() < deadline:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
                async with self.http.get(
                    f"{self.stack.url('experience')}/records/{answer.receipt}"
                ) as response:
                    if response.status == 200 and (await response.json())["samples"]:
                        return ""
            await asyncio.sleep(LOOK_S)
        return f"the report on {answer.receipt} makes no sample"

    async def takes_keys(self) -> None:
        """A fresh stack says for some seconds that it cannot know whether a key was used before."""
        deadline = time.monotonic() + RECOVER_WITHIN_S
        why, count = await self.recovered((), time.time(), {}), 0
        while not why and time.monotonic() < deadline:
            count += 1
            key = f"first-{count}"
            answer = await Load(
                lambda: self.stack.url("gateway"), Book(), seed=0, users=0, pause_s=1.0
            ).ask(
                self.http,
                Turn(key, 0, [{"role": "user", "content": "hello"}], "", key, False, False, 1),
            )
            if answer.complete:
                return
            await asyncio.sleep(0.5)
        raise StackDied(why or "no request with a key is answered")
