"""What a recipe did with samples, the candidate that came of it, and the verdict on it."""

from typing import Annotated, Any, Literal

from pydantic import Field

from reefcommon.events.base import Event, Kind, Policy, Value, Verdict


class StepCompleted(Event):
    """A recipe finished one job. `event_id` is the job's id. `reason` says why there is no candidate, where there is none."""

    type: Literal["step.completed.v1"] = "step.completed.v1"
    recipe: str
    step: int
    base_release_id: str
    sample_ids: tuple[str, ...]
    metrics: dict[str, float] = {}
    duration_s: float
    candidate_id: str | None = None
    reason: str | None = None


class SampleRefused(Event):
    """A recipe will never use this sample. `event_id` = digest of recipe and sample, so that a replay refuses it once."""

    type: Literal["sample.refused.v1"] = "sample.refused.v1"
    recipe: str
    sample_id: str
    reason: str
    lag: int | None = None


class Lineage(Value):
    """Where a candidate comes from."""

    job_id: str | None = None
    sample_ids: tuple[str, ...] = ()
    recipe: str = ""
    knobs: dict[str, Any] = {}
    step: int | None = None


class CandidateProposed(Event):
    """Something that might serve: its content lies in the artifact store under `content_id`. `event_id` is the candidate's id."""

    type: Literal["candidate.proposed.v1"] = "candidate.proposed.v1"
    kind: Kind
    content_id: str
    base_release_id: str
    metrics: dict[str, float] = {}
    lineage: Lineage = Lineage()
    reason: str = ""


class TaskResult(Value):
    """Paired scores of one held-out task: means over the repeats that ran. None: no repeat of that side could be run."""

    task: str
    candidate: float | None = None
    head: float | None = None
    candidate_answer: str = ""
    head_answer: str = ""


class Evaluation(Value):
    """How a candidate compared with the head, and the rule that decided. Scores are means over the tasks."""

    verdict: Verdict
    policy: Policy
    reason: str
    candidate_score: float | None = None
    head_score: float | None = None
    head_release_id: str
    wins: int = 0
    losses: int = 0
    ties: int = 0
    p_value: float | None = None
    pairs: int = 0
    test: str = ""
    confidence_low: float | None = None
    strength: Literal["strong", "weak", "none"] | None = None
    tasks: tuple[TaskResult, ...] = ()
    failed_episodes: int = 0
    duration_s: float = 0.0


class CandidateEvaluated(Event):
    """The verdict on a candidate. It carries the whole candidate, so that nobody has to join. `event_id` = digest of candidate and head."""

    type: Literal["candidate.evaluated.v1"] = "candidate.evaluated.v1"
    candidate: CandidateProposed
    evaluation: Evaluation


Learning = Annotated[StepCompleted | SampleRefused, Field(discriminator="type")]
