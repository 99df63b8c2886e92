"""The events: what happened, in the past tense, frozen. A new meaning is a new type; an old type is decoded for ever.

Every event carries `type`, `event_id` (its identity: the same id with the same content is a repeat), `at` (UTC), `scenario`
and the W3C `traceparent` of the work that caused it. Readers ignore fields that they do not know, so that a field can be added.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, FiniteFloat

Kind = Literal["base", "lora", "checkpoint", "harness", "routing"]
Operation = Literal["creation", "training", "harness", "manual", "rollback", "promote", "recovery"]
Outcome = Literal["ok", "aborted", "failed", "upstream_incomplete"]
Verdict = Literal["select", "reject", "evaluation_failed"]
Policy = Literal["score_comparison", "paired_confidence", "no_regression", "always"]


def utc_now() -> datetime:
    """The time now, with its zone."""
    return datetime.now(UTC)


class Value(BaseModel):
    """A frozen part of an event."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="constants")


class Event(Value):
    """What all events have."""

    event_id: str
    at: AwareDatetime
    scenario: str
    traceparent: str = ""


# ------------------------------------------------------------------ experience


class WeightSpan(Value):
    """Tokens [start, end) of a completion were sampled from the weights named `version`."""

    version: str
    start: int
    end: int


class Completion(Value):
    """One choice as the engine sampled it. `token_ids` and `logprobs` have equal length, or the record is untrainable."""

    index: int
    finish_reason: str | None = None
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    weight_versions: tuple[WeightSpan, ...] = ()


class Usage(Value):
    """Token counts as the engine states them; `estimated` where it did not and Reef counted what it saw."""

    prompt_tokens: int
    completion_tokens: int
    estimated: bool = False


class BodyRef(Value):
    """A claim check: the body lies in the object store under its digest."""

    uri: str
    sha256: str
    size_bytes: int


class InferenceRecorded(Event):
    """One exchange with the model. `event_id` is the receipt."""

    type: Literal["inference.recorded.v1"] = "inference.recorded.v1"
    api: Literal["chat.completions", "completions", "responses", "messages"] = "chat.completions"
    outcome: Outcome
    session_tag: str | None = None
    tags: dict[str, str] = {}
    release_id: str | None = None
    load_id: str | None = None
    model: str = ""
    engine: str = ""
    request: dict[str, Any] | None = None
    response: dict[str, Any] | None = None
    body_ref: BodyRef | None = None
    prompt_token_ids: tuple[int, ...] = ()
    completions: tuple[Completion, ...] = ()
    usage: Usage | None = None
    error: str | None = None
    status: int = 200
    stream: bool = False
    first_token_ms: float | None = None
    duration_ms: float = 0.0
    idempotency_digest: str | None = None


class FeedbackReported(Event):
    """Rewards or words about earlier exchanges. `event_id` is the report's own receipt."""

    type: Literal["feedback.reported.v1"] = "feedback.reported.v1"
    references: tuple[str, ...]
    score: FiniteFloat | None = None
    feedback: str | dict[str, Any] | None = None
    metadata: dict[str, Any] = {}
    content_digest: str


class SampleReady(Event):
    """A piece of experience that a recipe may use: one record, or the turns of one session, with what was said of it.

    `tokens` = prompt + response ids exactly as the engine saw and sampled them; `loss_mask` and `logprobs` have the length of the
    response (`len(tokens) - prompt_length`): mask 1 on sampled tokens, 0 on what the environment put between them (logprob 0.0 there).
    `event_id` is the sample's id. Where `untrainable` names a reason, the token fields are empty and only the text can be used.
    """

    type: Literal["sample.ready.v1"] = "sample.ready.v1"
    record_ids: tuple[str, ...]
    report_id: str | None = None
    session_id: str | None = None
    tags: dict[str, str] = {}
    release_id: str | None = None
    load_id: str | None = None
    score: FiniteFloat | None = None
    feedback: str | dict[str, Any] | None = None
    metadata: dict[str, Any] = {}
    tokens: tuple[int, ...] = ()
    prompt_length: int = 0
    loss_mask: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    temperature: float = 1.0
    untrainable: str | None = None
    messages: tuple[dict[str, Any], ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    recorded_at: AwareDatetime


# ------------------------------------------------------------------ learning


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
    tasks: tuple[TaskResult, ...] = ()
    failed_episodes: int = 0
    duration_s: float = 0.0


class CandidateEvaluated(Event):
    """The verdict on a candidate. It carries the whole candidate, so that nobody has to join. `event_id` = digest of candidate and head."""

    type: Literal["candidate.evaluated.v1"] = "candidate.evaluated.v1"
    candidate: CandidateProposed
    evaluation: Evaluation


# ------------------------------------------------------------------ releases


class Release(Value):
    """One link of a scenario's append-only chain. `contents` maps each kind to the content that this release serves of it."""

    release_id: str
    scenario: str
    sequence: int
    parent_id: str | None = None
    kind: Kind
    content_id: str
    contents: dict[str, str] = {}
    operation: Operation
    load_id: str
    adapter: str | None = None
    candidate_id: str | None = None
    metrics: dict[str, float] = {}
    evaluation: Evaluation | None = None
    lineage: Lineage = Lineage()
    created_at: AwareDatetime
    reason: str = ""


class ReleasePublished(Event):
    """The head of the chain has advanced to this release. `event_id` is the release's id."""

    type: Literal["release.published.v1"] = "release.published.v1"
    release: Release
    command_id: str | None = None


class ReleasePending(Event):
    """A winner that waits for a person: it serves nobody until it is promoted. `event_id` is the candidate's id."""

    type: Literal["release.pending.v1"] = "release.pending.v1"
    release: Release


class ReleaseRejected(Event):
    """A candidate or a command came to nothing; the chain is unchanged. `event_id` = digest of what was rejected."""

    type: Literal["release.rejected.v1"] = "release.rejected.v1"
    outcome: Literal["rejected", "conflicted", "aborted"]
    reason: str
    candidate_id: str | None = None
    command_id: str | None = None
    evaluation: Evaluation | None = None


class ServingSynced(Event):
    """A serving node holds a release and answered a probe with it."""

    type: Literal["serving.synced.v1"] = "serving.synced.v1"
    release_id: str
    load_id: str
    node: str
    adapter: str | None = None
    duration_ms: float


# ------------------------------------------------------------------ commands


class ScenarioCreateRequested(Event):
    """Somebody wants this scenario to exist. `event_id` is the command's id."""

    type: Literal["scenario.create.requested.v1"] = "scenario.create.requested.v1"


class RollbackRequested(Event):
    """Somebody wants the content of an earlier release to serve again."""

    type: Literal["rollback.requested.v1"] = "rollback.requested.v1"
    release_id: str
    reason: str = ""


class PromoteRequested(Event):
    """Somebody wants a pending release to serve."""

    type: Literal["promote.requested.v1"] = "promote.requested.v1"
    release_id: str
    reason: str = ""


class DeadLettered(Event):
    """An event that could not be handled, as it lay in its topic. `event_id` = digest of group, topic, partition, offset."""

    type: Literal["event.dead.v1"] = "event.dead.v1"
    group: str
    topic: str
    partition: int
    offset: int
    key: str | None = None
    value: str = Field(description="the original bytes, base64")
    reason: str
    attempts: int


Experience = Annotated[InferenceRecorded | FeedbackReported, Field(discriminator="type")]
Learning = Annotated[StepCompleted | SampleRefused, Field(discriminator="type")]
Publication = Annotated[ReleasePublished | ReleasePending | ReleaseRejected | ServingSynced, Field(discriminator="type")]
Command = Annotated[ScenarioCreateRequested | RollbackRequested | PromoteRequested, Field(discriminator="type")]

ALL: tuple[type[Event], ...] = (
    InferenceRecorded,
    FeedbackReported,
    SampleReady,
    StepCompleted,
    SampleRefused,
    CandidateProposed,
    CandidateEvaluated,
    ReleasePublished,
    ReleasePending,
    ReleaseRejected,
    ServingSynced,
    ScenarioCreateRequested,
    RollbackRequested,
    PromoteRequested,
    DeadLettered,
)
