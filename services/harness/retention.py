"""What the harness service no longer keeps, round by round: ended jobs with their samples, and trees that no job starts from."""

import asyncio
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from reefcommon.errors import Unavailable
from reefcommon.retention import tell_removed
from services.harness.domain import Binding, tree_content
from services.harness.sqlite import SqliteLedger

log = structlog.get_logger()

TREE_KEPT_S = 600.0
"""A tree that was fetched a moment ago may be of a job that is being opened now."""


@dataclass(slots=True)
class Retention:
    """The rounds. A failure is told and tried again in the next one."""

    bindings: tuple[Binding, ...]
    ledger: SqliteLedger
    trees: Path
    settled_kept_s: float
    every_s: float
    clock: Callable[[], datetime]
    _told: str = field(default="")

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(self.every_s)
            try:
                await asyncio.to_thread(self.round)
                self._told = ""
            except Unavailable as error:
                if str(error) != self._told:
                    log.warning("retention_put_off", reason=str(error))
                self._told = str(error)

    def round(self) -> dict[str, int]:
        """One round; blocks on the disk. Returns what is gone, by kind."""
        before_ms = int((self.clock() - timedelta(seconds=self.settled_kept_s)).timestamp() * 1000)
        counts = {"samples": 0, "jobs": 0, "trees": self._prune_trees()}
        for binding in self.bindings:
            for what, count in self.ledger.forget(binding.key, before_ms).items():
                counts[what] += count
        tell_removed("harness", counts)
        return counts

    def _prune_trees(self) -> int:
        keep: set[str | None] = set()
        for binding in self.bindings:
            job, head = self.ledger.current(binding.key), self.ledger.head(binding.scenario)
            keep |= {job.base_content if job else None, tree_content(head) if head else None}
        gone = 0
        for path in self.trees.iterdir() if self.trees.is_dir() else ():
            with suppress(FileNotFoundError):
                if path.name not in keep and path.stat().st_mtime < time.time() - TREE_KEPT_S:
                    shutil.rmtree(path, ignore_errors=True)
                    gone += 1
        return gone
