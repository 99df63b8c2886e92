"""The seeker of a binding: runs the recipe's `seek` on its thread, again after each failure."""

import asyncio
import time
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from reefcommon.errors import ReefError
from reefcommon.recipe_context import BudgetSpent, SeekContext
from reefkit.jobs.context import Kit
from reefkit.jobs.faults import last_lines, place_of
from reefkit.recipes.host_ends import EndsHost
from reefkit.recipes.models import Caller
from reefkit.recipes.proposals import Proposals
from reefkit.recipes.runtime import RecipeRuntime
from reefkit.recipes.seek_client import SeekClient
from reefkit.recipes.seek_context import SeekerContext, SeekLife
from reefkit.recipes.seek_services import SeekServices
from reefkit.recipes.state import BufferedState
from reefkit.redis_lease import LeaseLost

log = structlog.get_logger()

SOUND_AFTER_S = 600.0


@dataclass(slots=True)
class Seeker:
    """A binding whose recipe seeks. It holds the lease as long as its host does."""

    runtime: RecipeRuntime
    kit: Kit
    services: SeekServices
    state: str = "starting"
    starts: int = 0
    last_error: str | None = None
    last_error_at: datetime | None = None
    client: SeekClient = field(init=False)
    proposals: Proposals = field(init=False)

    def __post_init__(self) -> None:
        self.client = self.services.client()
        self.proposals = Proposals(self.runtime.binding, self.kit)

    async def run(self) -> None:
        """Run until `seek` returns. Raises LeaseLost if another host has taken over."""
        failures = 0
        try:
            while True:
                began = time.monotonic()
                self.state, self.starts = "seeking", self.starts + 1
                try:
                    await self.once()
                except LeaseLost:
                    raise
                except (BudgetSpent, EndsHost) as error:  # a state, not a failure
                    self.state, failures = f"waits: {error}", 0
                    await asyncio.sleep(self.services.restarts.max_delay_s)
                except Exception as error:  # noqa: BLE001  # the recipe is its author's code
                    sound = time.monotonic() - began > SOUND_AFTER_S
                    failures = 1 if sound else failures + 1
                    self._note(error)
                    await asyncio.sleep(self.services.restarts.delay_s(failures))
                else:
                    self.state = "done"
                    log.info("seek_done", binding=self.runtime.binding.key)
                    return
        finally:
            await self.client.close()

    async def once(self) -> None:
        """Call `seek`, and keep the writes that it leaves. Raises as `seek`."""
        life = SeekLife()
        context: SeekContext = self._context(life)
        seek = self.runtime.binding.recipe.seek
        try:
            async with self.runtime.ends.noted("seek"):
                await self.runtime.call(seek, context, timeout_s=None)
            await self.runtime.call(context.commit, timeout_s=None)
        finally:
            life.over = True

    def facts(self) -> dict[str, object]:
        """Return the row of this seeker in `/status`. Blocks."""
        waits = self.client.waits if self.state == "seeking" else ""
        return {
            "state": f"waits: {waits}" if waits else self.state,
            "starts": self.starts,
            "asked": self.client.asked,
            "proposed": self.kit.store.counts("jobs", self.proposals.key),
            "last_error": self.last_error,
            "last_error_at": self.last_error_at,
        }

    def _context(self, life: SeekLife) -> SeekerContext:
        runtime, services = self.runtime, self.services
        binding, loop = runtime.binding, asyncio.get_running_loop()
        return SeekerContext(
            scenario=binding.scenario,
            services=runtime.services,
            caller=Caller(binding.key, binding.scenario, "", loop, runtime.services.models),
            store=BufferedState(runtime.services.store, binding.key),
            key=binding.key,
            client=self.client,
            proposals=self.proposals,
            heads=services.heads,
            model_name=services.model_name,
            priority=services.priority,
            life=life,
        )

    def _note(self, error: Exception) -> None:
        reason = place_of(error)
        trace = "" if isinstance(error, ReefError) else last_lines(error)
        self.state, self.last_error = f"failed, starts again: {reason}", reason
        self.last_error_at = self.kit.clock()
        binding = self.runtime.binding.key
        log.warning("seek_failed", binding=binding, reason=reason, trace=trace)
