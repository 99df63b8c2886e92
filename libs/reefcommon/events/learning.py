"""Signals and steps of a recipe, its candidates, and the verdicts."""

from typing import Annotated, Any, Literal

from pydantic import Field

from reefcommon.events.base import Event, Kind, Policy, Value, Verdict
from reefcommon.events.experience import Signal


class SignalComputed(Event):
    """A recipe's signal on a unit, computed once. `event_id`: a digest of recipe, unit, knobs.

    `signal` None: the recipe abstains. `calls` and `tokens` are those of models.
    """

    type: Literal["signal.computed.v1"] = "signal.computed.v1"
    recipe: str
    unit_id: str
    signal: Signal | None = None
    calls: int = 0
    tokens: int = 0


class StepCompleted(Event):
    """A recipe finished a job. `event_id` is its id; `reason` says why there is no candidate."""

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
    """A recipe will never use this sample. `event_id` is a digest of recipe and sample."""

    type: Literal["sample.refused.v1"] = "sample.refused.v1"
    recipe: str
    sample_id: str
    reason: str
    lag: int | None = None


class Lineage(Value):
    job_id: str | None = None
    sample_ids: tuple[str, ...] = ()
    recipe: str = ""
    knobs: dict[str, Any] = {}
    step: int | None = None


class CandidateProposed(Event):
    """A content of the artifact store that might serve. `event_id` is the candidate's id."""

    type: Literal["candidate.proposed.v1"] = "candidate.proposed.v1"
    kind: Kind
    content_id: str
    base_release_id: str
    metrics: dict[str, float] = {}
    lineage: Lineage = Lineage()
    reason: str = ""


class AgentRun(Value):
    """An agent's run on a task. `digest` is of all its steps, `lines` the first and the last."""

    status: str
    exit_code: int | None = None
    seconds: float = 0.0
    requests: int = 0
    files: tuple[str, ...] = ()
    digest: str = ""
    lines: tuple[str, ...] = ()


class HarnessProposed(Event):
    """A person or an agent proposed changes of a harness. `event_id` is the proposal's id.

    `by_admin`: its token has the scope `admin`.
    """

    type: Literal["harness.proposed.v1"] = "harness.proposed.v1"
    mutations: tuple[dict[str, Any], ...]
    reason: str = ""
    by_admin: bool = False


class InstructionGiven(Event):
    """A person told a harness recipe in words what to change. `event_id` is the proposal's id."""

    type: Literal["instruction.given.v1"] = "instruction.given.v1"
    text: str
    session_id: str | None = None


class TaskResult(Value):
    """Mean scores of a held-out task, or of a prompt's held-out samples.

    None: the side could not be run.
    """

    task: str
    candidate: float | None = None
    head: float | None = None
    candidate_answer: str = ""
    head_answer: str = ""
    candidate_words: str = ""
    head_words: str = ""
    # the first run of an agent on it
    candidate_run: AgentRun | None = None
    head_run: AgentRun | None = None


class Evaluation(Value):
    """The comparison of a candidate with the head. Scores are means over the pairs.

    `confidence_low` bounds the mean difference from below, `p_value` belongs to `test`, `strength`
    says how well the pairs show that the candidate is better.
    """

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
    """The verdict on a candidate. `event_id` is a digest of candidate and head.

    `partner`: the harness that was judged together with it; both become one release.
    `joined`: it is such a partner, and the candidate with this id stands for both.
    """

    type: Literal["candidate.evaluated.v1"] = "candidate.evaluated.v1"
    candidate: CandidateProposed
    evaluation: Evaluation
    partner: CandidateProposed | None = None
    joined: str | None = None


Learning = Annotated[StepCompleted | SampleRefused, Field(discriminator="type")]
Proposal = Annotated[HarnessProposed | InstructionGiven, Field(discriminator="type")]
