"""The parts that all transitions of a binding share."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import structlog

from reefcommon.artifacts import ArtifactStore
from reefcommon.errors import Poison, Unavailable
from reefcommon.events import Evaluation, Release
from reefcommon.recipe import Recipe
from reefkit.artifacts.cache import FetchedTrees
from reefkit.jobs import metrics
from reefkit.jobs.model import Job, State
from reefkit.jobs.outbox import Outbox
from reefkit.jobs.ports import Executor
from reefkit.jobs.recipe_store import Effects, Outgoing
from reefkit.jobs.store import JobStore
from reefkit.recipe_binding import Binding
from reefkit.recipes.runtime import RecipeServices
from reefkit.recipes.seek_services import SeekServices
from reefkit.recipes.verdicts import told
from reefkit.retry import RetryPolicy

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Kit:
    """The parts that the loops and executors of a host share.

    `home`: the state directory of the service; `storing`: see `reefkit.jobs.retention`.
    """

    home: Path
    store: JobStore
    artifacts: ArtifactStore
    trees: FetchedTrees
    outbox: Outbox
    clock: Callable[[], datetime]
    retry: RetryPolicy
    decide_timeout_s: float = 60.0
    recipes: RecipeServices | None = None
    seekers: SeekServices | None = None
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def serving_tree(self, content: str, scenario: str) -> Path:
        """Return the files of a content that serves. Blocks. Raises Unavailable."""
        try:
            return self.trees.fetch(self.artifacts, content, scenario)
        except Poison as error:  # no sample is at fault
            remedy = f"restore the artifact store, or roll {scenario} back"
            raise Unavailable(f"{error}: {remedy}") from error


@dataclass(slots=True)
class Context:
    """A binding of a host, and its state in `/status` and `/readyz`."""

    binding: Binding[Recipe]
    executor: Executor
    kit: Kit
    doing: str = "starting"
    step: int = 0
    last_metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    error_at: datetime | None = None
    failing: str | None = None

    async def save(
        self,
        job: Job,
        *,
        expected: State,
        events: Outgoing = (),
        effects: Effects | None = None,
        evaluation: Evaluation | None = None,
    ) -> bool:
        """Make, log and count a transition. False if the job is not in `expected`.

        `effects`: of the call that made its output. `evaluation`: of the verdict.
        """
        moved = await asyncio.to_thread(
            self.kit.store.save,
            job,
            expected=expected,
            events=events,
            effects=effects,
            judged=told(self.binding, self.executor.kind, job, evaluation),
        )
        if moved:
            self.tell(job, job.state)
        return moved

    def tell(self, job: Job, outcome: str, **more: object) -> None:
        metrics.JOBS.labels(job.binding, outcome).inc()
        facts = {"job": job.job_id, "step": job.step, "base": job.base_release_id} | more
        log.info("job_moved", to=outcome, binding=job.binding, reason=job.reason, **facts)

    async def finish_step(self, job: Job, head: Release | None) -> None:
        self.show(job)
        await asyncio.to_thread(self.executor.tidy, head)

    def show(self, job: Job) -> None:
        self.step, self.last_metrics = job.step, dict(job.metrics)
        for name, value in job.metrics.items():
            metrics.LAST.labels(job.binding, name).set(value)

    def note(self, error: str) -> None:
        self.error, self.error_at = error, self.kit.clock()

    def wait(self, doing: str) -> bool:
        """Show the reason to wait. Returns False: no transition."""
        self.doing = doing
        return False
