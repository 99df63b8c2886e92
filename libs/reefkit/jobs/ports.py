"""The executor of a kind, and the results of its steps."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from reefcommon.events import Kind, Release, Unit
from reefcommon.recipe import Decision
from reefkit.jobs.model import Job
from reefkit.jobs.recipe_store import Effects
from reefkit.recipes.runtime import RecipeRuntime

Samples = Sequence[Unit]


@dataclass(frozen=True, slots=True)
class Produced:
    """A step. `output` is durable JSON; `step` overrides the host's count.

    Without a candidate it has an `end`; "refused": its output may not be proposed. `effects` of
    the call that made it are saved with the job.
    """

    output: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    step: int | None = None
    reason: str = ""
    end: Literal["finished", "refused"] | None = None
    effects: Effects | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """No step. Samples in `culprits` (id -> reason) are refused; the others wait again."""

    reason: str
    culprits: Mapping[str, str] = field(default_factory=dict)


Result = Produced | Refused


class Executor(ABC):
    """A kind of recipe. All methods may be repeated; those that are not async block."""

    kind: ClassVar[Kind]
    doing: ClassVar[str] = "working"
    """The word for a running step in `/status`."""
    once_per_record: ClassVar[bool] = False
    """A record is used at most once per recipe."""
    text_only: ClassVar[bool] = False
    """Samples are kept without their tokens."""
    holds_while_pending: ClassVar[bool] = True
    """The next job waits while a person decides."""
    rebases: ClassVar[bool] = False
    """An output can be applied to another base of its own kind."""
    shown_rejections: ClassVar[int] = 0
    """The newest rejected jobs that are never forgotten."""
    runtime: RecipeRuntime
    """Set by the host: it runs the recipe's own code."""

    @abstractmethod
    def decide(self, waiting: Samples, head: Release) -> Decision:
        """Return the recipe's decision. Pure."""

    @abstractmethod
    async def run(self, job: Job, samples: Samples) -> Result:
        """Make the step of a job. Without samples it is that of `job.plan["proposal"]`.

        Raises:
            Unavailable: tried again without limit.
            Transient: tried again a bounded number of times.
            Exception: the host looks for the sample that causes it.
        """

    @abstractmethod
    def tree(self, job: Job, scratch: Path) -> Path:
        """Return the directory of the candidate's files. `scratch` is empty.

        Raises:
            Poison: the output may not be proposed on this base.
        """

    async def probe(self, job: Job, samples: Samples) -> None:
        """Do as `run`, without effect. Raises as `run`."""
        await self.run(job, samples)

    def plan(self, last: Job | None, head: Release, batch: Samples) -> Mapping[str, Any]:
        """Return the start of a step, kept with its job."""
        return {}

    def proposals_at_most(self) -> int:
        """Return how many proposals of people may wait in a scenario; 0: it takes none."""
        return 0

    def has_run(self, job: Job) -> bool:
        """Return whether the output of an open job is on disk."""
        return False

    def obstacle(self, head: Release) -> str | None:
        """Return the reason to wait, if any."""
        return None

    def kept_jobs(self) -> Collection[str]:
        """Return jobs that have state on disk."""
        return ()

    def contents_in_use(self, job: Job | None, head: Release | None) -> set[str]:
        """Return the contents that this or the next job needs."""
        return set()

    def tidy(self, head: Release | None) -> None:  # noqa: B027 - optional
        """Remove local state that is no longer needed."""

    async def stop(self) -> None:  # noqa: B027 - optional
        """End a step that runs."""
