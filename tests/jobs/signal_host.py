"""A host that judges all units of a job store, as a process that can be killed: HOME URL."""

import asyncio
import sys
from datetime import UTC, datetime
from pathlib import Path

from reefcommon.recipe import Knobs
from reefkit.jobs.store import JobStore
from reefkit.recipe_binding import Binding
from reefkit.recipes.models import ModelPool
from reefkit.recipes.runtime import RecipeRuntime, RecipeServices
from reefkit.recipes.signals import SignalStage
from reefkit.retry import RetryPolicy
from tests.fakes.judge import Judge
from tests.jobs.judged import JudgedRecipe, endpoint

BINDING = Binding("default", "tests.jobs.words:W", JudgedRecipe(Knobs()))


async def main(home: Path, url: str) -> None:
    store = JobStore(home / "ledger.sqlite")
    pool = ModelPool(store, endpoint(Judge(url=url)))
    services = RecipeServices(store, lambda: datetime.now(UTC), pool, RetryPolicy(0.01, 0.05, 3))
    runtime = RecipeRuntime(BINDING, services)
    sys.stdout.write("started\n")
    sys.stdout.flush()
    await SignalStage(runtime, lambda: None).settle()
    runtime.stop()
    await pool.close()
    store.close()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
