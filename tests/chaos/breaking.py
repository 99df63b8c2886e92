"""What is done to the programs: each kind of fault of the schedule, on the real stack."""

import asyncio
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.chaos.plan import Fault
from tests.chaos.stack import ReefStack, SpoolDisk, StackDied
from tests.chaos.upstream import Upstream

THERE_WITHIN_S = 120.0


@dataclass(frozen=True)
class Breaking:
    """Hands on one stack, on the way to its engine and on the disk of its spool."""

    stack: ReefStack
    upstream: Upstream
    disk: SpoolDisk

    async def do(self, fault: Fault) -> dict[str, float]:
        """Returns once nothing keeps the parts from coming back. Unix times of the kills, by
        part. Raises StackDied.
        """
        killed: dict[str, float] = {}
        await {
            "kill": self._kill,
            "pause": self._pause,
            "hang": self._hang,
            "outage": self._outage,
            "upstream": self._bend,
            "disk": self._full,
        }[fault.kind](fault, killed)
        return killed

    async def _kill(self, fault: Fault, killed: dict[str, float]) -> None:
        for part in fault.parts:
            if part == "serve":
                self.stack.kill()
                killed[part] = time.time()
                await asyncio.to_thread(self.stack.start)
                continue
            await self._until(lambda part=part: self.stack.signal(part, signal.SIGKILL))
            killed[part] = time.time()
            await asyncio.sleep(fault.gap_s)

    async def _pause(self, fault: Fault, killed: dict[str, float]) -> None:
        for part in fault.parts:
            await self._until(lambda part=part: self.stack.signal(part, signal.SIGSTOP))
        await asyncio.sleep(fault.seconds)
        for part in fault.parts:
            self.stack.signal(part, signal.SIGCONT)

    async def _hang(self, fault: Fault, killed: dict[str, float]) -> None:
        for part in fault.parts:
            await self._until(lambda part=part: self.stack.signal(part, signal.SIGSTOP))
            before = self.stack.find(part)
            await self._until(
                lambda part=part, before=before: (
                    (now := self.stack.find(part)) is not None and now != before
                )
            )
            killed[part] = time.time()

    async def _outage(self, fault: Fault, killed: dict[str, float]) -> None:
        for part in fault.parts:
            self.stack.hold(part)
        await asyncio.sleep(fault.seconds)
        for part in fault.parts:
            self.stack.let_go(part)

    async def _bend(self, fault: Fault, killed: dict[str, float]) -> None:
        self.upstream.mode = fault.mode
        await asyncio.sleep(fault.seconds)
        self.upstream.mode = ""

    async def _full(self, fault: Fault, killed: dict[str, float]) -> None:
        await asyncio.to_thread(self.disk.fill)
        try:
            await self._outage(fault, killed)
        finally:
            self.disk.clear()

    async def _until(self, there: Callable[[], object]) -> None:
        deadline = time.monotonic() + THERE_WITHIN_S
        while not there():
            self.stack.look()
            if time.monotonic() > deadline:
                raise StackDied("a process that was to be broken did not come up; see the logs")
            await asyncio.sleep(0.02)
