"""The events: what happened, in the past tense, frozen. A new meaning is a new type; an old type is decoded for ever.

Every event carries `type`, `event_id` (its identity: the same id with the same content is a repeat), `at` (UTC), `scenario`
and the W3C `traceparent` of the work that caused it. Readers ignore fields that they do not know, so that a field can be added.

    experience   an exchange, what was said of it, and the sample that both make
    learning     what a recipe did with samples, the candidate that came of it, the verdict on it
    publication  the release chain, and what people ask of it
"""

from reefcommon.events.base import Event, Kind, Operation, Outcome, Policy, Value, Verdict, utc_now
from reefcommon.events.experience import (
    BodyRef,
    Completion,
    Experience,
    FeedbackReported,
    InferenceRecorded,
    SampleReady,
    Sampling,
    Usage,
    WeightSpan,
)
from reefcommon.events.learning import (
    CandidateEvaluated,
    CandidateProposed,
    Evaluation,
    Learning,
    Lineage,
    SampleRefused,
    StepCompleted,
    TaskResult,
)
from reefcommon.events.publication import (
    Command,
    DeadLettered,
    DeadLetterSettled,
    PromoteRequested,
    Publication,
    Release,
    ReleasePending,
    ReleasePublished,
    ReleaseRejected,
    RollbackRequested,
    ScenarioCreateRequested,
    ServingSynced,
)

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
    DeadLetterSettled,
)

__all__ = [
    "ALL",
    "BodyRef",
    "CandidateEvaluated",
    "CandidateProposed",
    "Command",
    "Completion",
    "DeadLetterSettled",
    "DeadLettered",
    "Evaluation",
    "Event",
    "Experience",
    "FeedbackReported",
    "InferenceRecorded",
    "Kind",
    "Learning",
    "Lineage",
    "Operation",
    "Outcome",
    "Policy",
    "PromoteRequested",
    "Publication",
    "Release",
    "ReleasePending",
    "ReleasePublished",
    "ReleaseRejected",
    "RollbackRequested",
    "SampleReady",
    "SampleRefused",
    "Sampling",
    "ScenarioCreateRequested",
    "ServingSynced",
    "StepCompleted",
    "TaskResult",
    "Usage",
    "Value",
    "Verdict",
    "WeightSpan",
    "utc_now",
]
