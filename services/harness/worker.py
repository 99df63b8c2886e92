"""The turns of the harness service: takes every binding as far as it goes, then sleeps until something arrives or a failed turn is due."""

import asyncio
from dataclasses import dataclass, field

import structlog

from reefcommon.errors import Poison, Unavailable
from services.harness.domain import Binding
from services.harness.handlers import Handlers

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Patience:
    """How a turn that failed is tried again."""

    first_delay_s: float = 0.25
    max_delay_s: float = 5.0
    max_attempts: int = 6

    def delay_s(self, attempt: int) -> float:
        """The wait after the `attempt`-th failure in a row."""
        return min(self.first_delay_s * 2.0 ** min(attempt - 1, 30), self.max_delay_s)


@dataclass(slots=True)
class Worker:
    """One task a process. Bindings take turns, so that one that fails does not hold up the others. `failing` is shown by `/readyz`."""

    handlers: Handlers
    patience: Patience
    arrived: asyncio.Event
    failing: dict[str, str] = field(default_factory=dict)
    failures: dict[str, int] = field(default_factory=dict)
    """Failed turns in a row, for the wait."""
    broken: dict[str, int] = field(default_factory=dict)
    """Those of them that were not an outside system's: they are bounded."""
    given_up: dict[str, str] = field(default_factory=dict)
    """Bindings whose current job is to be closed, with the reason."""

    async def run(self) -> None:
        """Work until cancelled. A cancelled turn is finished by the next start of the service."""
        while True:
            self.arrived.clear()
            delays = [
                delay
                for binding in self.handlers.bindings
                if (delay := await self.turn(binding)) is not None
            ]
            try:
                await asyncio.wait_for(self.arrived.wait(), timeout=min(delays) if delays else None)
            except TimeoutError:
                continue

    async def turn(self, binding: Binding) -> float | None:
        """Take one binding as far as it goes. Returns the seconds after which to try again, where it failed."""
        key = binding.key
        try:
            if key in self.given_up:
                await self.handlers.give_up(binding, self.given_up[key])
                self._recovered(key)
            while await self.handlers.advance(binding):
                self._recovered(key)
        except Unavailable as error:
            log.warning("outside_system_unavailable", binding=key, reason=str(error))
            return self._failed(key, str(error))
        except (
            Exception
        ) as error:  # a recipe is anybody's code: its step fails, the other bindings go on
            log.exception("harness_step_failed", binding=key)
            self.broken[key] = self.broken.get(key, 0) + 1
            if isinstance(error, Poison) or self.broken[key] >= self.patience.max_attempts:
                # The error's own words may hold what a user wrote: they stay in the log of this service.
                self.given_up[key] = (
                    f"{type(error).__name__} in the step; the log of the harness service tells more"
                )
            return self._failed(key, type(error).__name__)
        self._recovered(key)
        return None

    def _failed(self, key: str, reason: str) -> float:
        self.failing[key] = reason
        self.failures[key] = self.failures.get(key, 0) + 1
        return self.patience.delay_s(self.failures[key])

    def _recovered(self, key: str) -> None:
        self.failing.pop(key, None)
        self.failures.pop(key, None)
        self.broken.pop(key, None)
        self.given_up.pop(key, None)
