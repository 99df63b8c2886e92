"""The topics, with events, key, retention, writers and readers (see docs/events.md)."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from reefcommon import events

FOREVER = timedelta(days=36_500)


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic. `consumers` are its consumer groups, and services that read it without a group."""

    name: str
    events: tuple[type[events.Event], ...]
    producers: tuple[str, ...]
    consumers: tuple[str, ...]
    why: str
    key: Literal["shard", "scenario"] = "scenario"
    partitions: int = 4
    retention: timedelta = FOREVER

    @property
    def dead(self) -> str:
        return f"{self.name}.dead"

    @property
    def retention_ms(self) -> int:
        """Return the retention for Kafka; -1: for ever."""
        return -1 if self.retention >= FOREVER else int(self.retention.total_seconds() * 1000)

    @property
    def kept(self) -> str:
        """The retention in words."""
        return "for ever" if self.retention >= FOREVER else f"{self.retention.days} days"


DAYS_30 = timedelta(days=30)

INFERENCES = Topic(
    "reef.inferences.v1",
    (events.InferenceRecorded,),
    ("gateway",),
    ("experience",),
    "every exchange with the model; the receipt is its event id",
    key="shard",
    partitions=8,
)
FEEDBACK = Topic(
    "reef.feedback.v1",
    (events.FeedbackReported,),
    ("gateway",),
    ("experience",),
    "rewards and words about receipts, in the partition of the first one",
    key="shard",
    partitions=8,
)
SAMPLES = Topic(
    "reef.samples.v1",
    (events.SampleReady, events.TurnFollowed, events.SessionEnded),
    ("experience",),
    ("trainer-samples", "harness-samples", "evaluator-samples"),
    "experience that a recipe may use, joined and merged: reports, turns, sessions",
    retention=DAYS_30,
)
SIGNALS = Topic(
    "reef.signals.v1",
    (events.SignalComputed,),
    ("trainer", "harness"),
    ("experience", "trainer", "harness"),
    "what the recipes' judges said about units, so that nobody is asked twice",
)
TRAINING = Topic(
    "reef.training.v1",
    (events.StepCompleted, events.SampleRefused),
    ("trainer", "harness"),
    ("experience", "gateway"),
    "what the recipes did with the samples: steps and refusals, each with its reason",
    retention=DAYS_30,
)
PROPOSALS = Topic(
    "reef.proposals.v1",
    (events.HarnessProposed, events.InstructionGiven),
    ("gateway",),
    ("harness-proposals",),
    "what people and agents propose for a harness, in mutations or in words",
    retention=DAYS_30,
)
CANDIDATES = Topic(
    "reef.candidates.v1",
    (events.CandidateProposed,),
    ("trainer", "harness", "publisher", "gateway"),
    ("evaluator-candidates",),
    "what might serve next; anybody may propose",
)
EVALUATIONS = Topic(
    "reef.evaluations.v1",
    (events.CandidateEvaluated,),
    ("evaluator",),
    ("publisher-evaluations",),
    "verdicts with their evidence",
)
RELEASES = Topic(
    "reef.releases.v1",
    (
        *(events.ReleasePublished, events.ReleasePending, events.ReleaseRejected),
        *(events.ScenarioHeld, events.ServingSynced),
    ),
    ("publisher",),
    (
        *("gateway", "experience", "trainer-releases", "harness-releases", "publisher"),
        "publisher-webhook",
    ),
    "the release chain: what serves, what waits, what came to nothing",
)
COMMANDS = Topic(
    "reef.commands.v1",
    (
        *(events.ScenarioCreateRequested, events.RollbackRequested, events.PromoteRequested),
        events.HoldRequested,
    ),
    ("gateway", "evaluator"),
    ("publisher-commands",),
    "what people ask of the release chain",
    retention=DAYS_30,
)

ALL = (
    INFERENCES,
    FEEDBACK,
    SAMPLES,
    SIGNALS,
    TRAINING,
    PROPOSALS,
    CANDIDATES,
    EVALUATIONS,
    RELEASES,
    COMMANDS,
)
