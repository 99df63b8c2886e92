"""What the harness service no longer keeps, round by round.

trees        fetched ones that no job starts from
ledger       ended jobs with their samples after `settled_kept_s`; a horizon stands for them
artifacts    contents of candidates that came to nothing after `rejected_kept_s`; see `reefkit.rejected_contents`
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from reefkit.artifacts.cache import FetchedTrees
from reefkit.rejected_contents import Rejected
from reefkit.retention import tell_removed
from services.harness.domain import Binding, tree_content
from services.harness.sqlite import SqliteLedger


@dataclass(frozen=True, slots=True)
class Retention:
    """What one round needs."""

    bindings: tuple[Binding, ...]
    ledger: SqliteLedger
    trees: FetchedTrees
    rejected: Rejected
    settled_kept_s: float
    rejected_kept_s: float
    clock: Callable[[], datetime]

    async def round(self) -> dict[str, int]:
        """One round. Returns what is gone, by kind. Raises Unavailable where the disk, the heads or the artifact store do not answer."""
        now = self.clock()
        counts = {
            "trees": await asyncio.to_thread(self.trees.prune, self._in_use),
            "contents": 0,
            "samples": 0,
            "jobs": 0,
        }
        before_ms = int((now - timedelta(seconds=self.settled_kept_s)).timestamp() * 1000)
        for binding in self.bindings:
            for what, count in (
                await asyncio.to_thread(self.ledger.forget, binding.key, before_ms)
            ).items():
                counts[what] += count
        try:
            for scenario in {binding.scenario for binding in self.bindings}:
                counts["contents"] += await self.rejected.drop(
                    scenario, now - timedelta(seconds=self.rejected_kept_s)
                )
        finally:
            tell_removed("harness", counts)
        return counts

    def _in_use(self) -> set[str]:
        """The trees that jobs start from, now or next."""
        jobs = [self.ledger.current(binding.key) for binding in self.bindings]
        heads = [self.ledger.head(binding.scenario) for binding in self.bindings]
        contents = [
            *(job.base_content for job in jobs if job),
            *(tree_content(head) for head in heads if head),
        ]
        return {content for content in contents if content}
