"""What the trainer no longer keeps, round by round. Nothing that waits, is under way, has no verdict yet, or that a release names.

ledger       settled samples and jobs after `settled_kept_s`; a horizon stands for them
artifacts    contents of rejected candidates after `rejected_kept_s`, unless a release or another job has the same content
adapters     copies that an earlier step has started from
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import structlog

from reefcommon.errors import Poison, Transient
from reefcommon.fetched import FetchedTrees
from reefcommon.rejected import Rejected
from reefcommon.retention import tell_removed
from services.trainer.domain import Binding
from services.trainer.filesystem import DirectoryCheckpoints
from services.trainer.ledger import SqliteLedger

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Policy:
    """How long things are kept, seconds."""

    settled_kept_s: float
    rejected_kept_s: float
    every_s: float


@dataclass(slots=True)
class Retention:
    """The rounds. A failure is told and tried again in the next one: keeping too much harms nobody at once."""

    bindings: tuple[Binding, ...]
    ledger: SqliteLedger
    checkpoints: DirectoryCheckpoints
    adapters: FetchedTrees
    rejected: Rejected
    policy: Policy
    clock: Callable[[], datetime]
    _told: str = field(default="")

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(self.policy.every_s)
            try:
                await self.round()
                self._told = ""
            except (Transient, Poison) as error:
                if str(error) != self._told:
                    log.warning("retention_put_off", reason=str(error))
                self._told = str(error)

    async def round(self) -> dict[str, int]:
        """One round. Returns what is gone, by kind."""
        counts = {"samples": 0, "jobs": 0, "contents": 0, "adapters": 0}
        limit = self.clock() - timedelta(seconds=self.policy.rejected_kept_s)
        for scenario in {binding.scenario for binding in self.bindings}:
            counts["contents"] += await self.rejected.drop(scenario, limit)
        before_ms = int((self.clock() - timedelta(seconds=self.policy.settled_kept_s)).timestamp() * 1000)
        for binding in self.bindings:
            kept = await asyncio.to_thread(self.checkpoints.kept, binding.key)
            gone = await asyncio.to_thread(self.ledger.forget, binding.key, before_ms, kept)
            counts = {what: count + gone.get(what, 0) for what, count in counts.items()}
        counts["adapters"] = await asyncio.to_thread(self.adapters.prune, self._adopted)
        tell_removed("trainer", counts)
        return counts

    def _adopted(self) -> set[str]:
        """The adapters that unfinished jobs start from."""
        return {job.start.adopt for binding in self.bindings if (job := self.ledger.unfinished(binding.key)) and job.start.adopt}
