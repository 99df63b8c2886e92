"""What the harness service no longer keeps, round by round.

trees        fetched ones that no job starts from
ledger       ended jobs with their samples after `settled_kept_s`; a horizon stands for them
artifacts    contents of candidates that came to nothing after `rejected_kept_s`; see `reefcommon.rejected`
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
from services.harness.domain import Binding, tree_content
from services.harness.sqlite import SqliteLedger

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Policy:
    """How long things are kept, seconds."""

    settled_kept_s: float
    rejected_kept_s: float
    every_s: float


@dataclass(slots=True)
class Retention:
    """The rounds. A failure is told and tried again in the next one."""

    bindings: tuple[Binding, ...]
    ledger: SqliteLedger
    trees: FetchedTrees
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
        """One round. Returns what is gone, by kind. Raises Unavailable where the disk, the heads or the artifact store do not answer."""
        now = self.clock()
        counts = {"trees": await asyncio.to_thread(self.trees.prune, self._in_use), "contents": 0, "samples": 0, "jobs": 0}
        before_ms = int((now - timedelta(seconds=self.policy.settled_kept_s)).timestamp() * 1000)
        for binding in self.bindings:
            for what, count in (await asyncio.to_thread(self.ledger.forget, binding.key, before_ms)).items():
                counts[what] += count
        try:
            for scenario in {binding.scenario for binding in self.bindings}:
                counts["contents"] += await self.rejected.drop(scenario, now - timedelta(seconds=self.policy.rejected_kept_s))
        finally:
            tell_removed("harness", counts)
        return counts

    def _in_use(self) -> set[str]:
        """The trees that jobs start from, now or next."""
        jobs = [self.ledger.current(binding.key) for binding in self.bindings]
        heads = [self.ledger.head(binding.scenario) for binding in self.bindings]
        contents = [*(job.base_content for job in jobs if job), *(tree_content(head) for head in heads if head)]
        return {content for content in contents if content}
