"""What the trainer no longer keeps, round by round. Nothing that waits, is under way, has no verdict yet, or that a release names.

ledger       settled samples and jobs after `settled_kept_s`; a horizon stands for them
artifacts    contents of rejected candidates after `rejected_kept_s`, unless a release or another job has the same content
adapters     copies that an earlier step has started from
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from reefkit.artifacts.cache import FetchedTrees
from reefkit.rejected_contents import Rejected
from reefkit.retention import tell_removed
from services.trainer.domain import Binding
from services.trainer.handlers import Checkpoints
from services.trainer.ledger import SqliteLedger


@dataclass(frozen=True, slots=True)
class Retention:
    """What one round needs."""

    bindings: tuple[Binding, ...]
    ledger: SqliteLedger
    checkpoints: Checkpoints
    adapters: FetchedTrees
    rejected: Rejected
    settled_kept_s: float
    rejected_kept_s: float
    clock: Callable[[], datetime]

    async def round(self) -> dict[str, int]:
        """One round. Returns what is gone, by kind."""
        counts = {"samples": 0, "jobs": 0, "contents": 0, "adapters": 0}
        limit = self.clock() - timedelta(seconds=self.rejected_kept_s)
        for scenario in {binding.scenario for binding in self.bindings}:
            counts["contents"] += await self.rejected.drop(scenario, limit)
        before_ms = int((self.clock() - timedelta(seconds=self.settled_kept_s)).timestamp() * 1000)
        for binding in self.bindings:
            kept = await asyncio.to_thread(self.checkpoints.kept, binding.key)
            gone = await asyncio.to_thread(self.ledger.forget, binding.key, before_ms, kept)
            counts = {what: count + gone.get(what, 0) for what, count in counts.items()}
        counts["adapters"] = await asyncio.to_thread(self.adapters.prune, self._adopted)
        tell_removed("trainer", counts)
        return counts

    def _adopted(self) -> set[str]:
        """The adapters that unfinished jobs start from."""
        return {
            job.start.adopt
            for binding in self.bindings
            if (job := self.ledger.unfinished(binding.key)) and job.start.adopt
        }
