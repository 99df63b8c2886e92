"""What the harness tests share: samples, releases, verdicts, and the service on a real ledger and a real artifact store."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

from recipes.feedback_rules.recipe import FeedbackRulesKnobs, FeedbackRulesRecipe
from reefcommon.events import (
    CandidateProposed,
    Evaluation,
    Event,
    Release,
    ReleasePending,
    ReleasePublished,
    ReleaseRejected,
    SampleReady,
    utc_now,
)
from reefcommon.harness.admission import CHAT
from reefcommon.releases import next_contents
from reefkit.artifacts.cache import FetchedTrees
from reefkit.artifacts.git import GitArtifactStore
from reefkit.jobs.context import Kit
from reefkit.jobs.host import build
from reefkit.jobs.outbox import Outbox
from reefkit.jobs.store import JobStore
from reefkit.recipe_binding import Binding
from reefkit.retry import RetryPolicy
from services.harness.executor import HarnessExecutor
from tests.fakes.leases import SoleHolder

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
SCENARIO = "default"
GREET = "Please greet me with Hello first."
BINDING = Binding(
    SCENARIO,
    "recipes.feedback_rules.recipe:FeedbackRulesRecipe",
    FeedbackRulesRecipe(FeedbackRulesKnobs(batch_size=3, min_agreement=3)),
)


def sample(number, feedback=GREET, score=0.0, scenario=SCENARIO, **fields) -> SampleReady:
    return SampleReady(
        event_id=f"smp-{number}",
        at=AT,
        scenario=scenario,
        record_ids=(f"rec-{number}",),
        score=score,
        feedback=feedback,
        messages=({"role": "user", "content": "hi"}, {"role": "assistant", "content": "what"}),
        recorded_at=AT,
        **fields,
    )


def base_release() -> Release:
    return Release(
        release_id="rel-0", scenario=SCENARIO, sequence=0, parent_id=None, kind="base", content_id="base",
        operation="creation", load_id="inc:0", created_at=AT,
    )  # fmt: skip


def published(
    candidate: CandidateProposed | None, parent: Release, *, kind="harness", content=""
) -> ReleasePublished:
    content_id = candidate.content_id if candidate else content
    release = Release(
        release_id=f"rel-{parent.sequence + 1}", scenario=SCENARIO, sequence=parent.sequence + 1, parent_id=parent.release_id, kind=kind,
        content_id=content_id, contents=next_contents(parent, kind, content_id), operation="harness", load_id=f"inc:{parent.sequence + 1}",
        candidate_id=candidate.event_id if candidate else None, created_at=AT, reason="it won",
    )  # fmt: skip
    return ReleasePublished(event_id=release.release_id, at=AT, scenario=SCENARIO, release=release)


def first(release: Release) -> ReleasePublished:
    return ReleasePublished(event_id=release.release_id, at=AT, scenario=SCENARIO, release=release)


def pending(candidate: CandidateProposed, parent: Release) -> ReleasePending:
    release = published(candidate, parent).release.model_copy(update={"release_id": "rel-pending"})
    return ReleasePending(event_id=candidate.event_id, at=AT, scenario=SCENARIO, release=release)


def rejected(
    candidate: CandidateProposed,
    outcome="rejected",
    *,
    verdict="reject",
    reason="it lost",
    head=None,
) -> ReleaseRejected:
    evaluation = Evaluation(
        verdict=verdict,
        policy="score_comparison",
        reason=reason,
        head_release_id=head or candidate.base_release_id,
    )
    return ReleaseRejected(
        event_id=f"rejected-{candidate.event_id}-{outcome}", at=AT, scenario=SCENARIO, outcome=outcome, reason="it lost",
        candidate_id=candidate.event_id, evaluation=evaluation,
    )  # fmt: skip


@dataclass
class Published:
    """A publisher that keeps what it was given, repeats included."""

    events: list[Event] = field(default_factory=list)

    async def publish(self, event, topic, *, shard=None) -> None:
        assert type(event) in topic.events
        self.events.append(event)

    def of(self, event_type) -> list:
        """The distinct events of a type, in the order of their first arrival; a repeat must be equal."""
        found = {}
        for event in self.events:
            if isinstance(event, event_type):
                assert found.setdefault(event.event_id, event) == event
        return list(found.values())


class Hosted:
    """The service as production builds it, on the files under `home`."""

    def __init__(
        self, home, publisher, *, bindings=(BINDING,), store=None, artifacts=None, max_attempts=3
    ):
        self.store = store or JobStore(home / "ledger.sqlite")
        self.artifacts = artifacts or GitArtifactStore(home / "artifacts.git")
        self.trees = FetchedTrees(home / "trees")
        retry = RetryPolicy(0.01, 0.02, max_attempts)
        outbox = Outbox(self.store, publisher, SoleHolder())
        self.kit = Kit(home, self.store, self.artifacts, self.trees, outbox, utc_now, retry, 10.0)
        self.handlers = build(bindings, self.kit, executor)
        self.loops = {loop.binding.key: loop for loop in self.handlers.loops}

    async def turn(self, binding=BINDING):
        """Run one binding until nothing can be done."""
        while await self.loops[binding.key].once():
            pass


def executor(binding, kit):
    return HarnessExecutor(binding, kit, CHAT, propose_timeout_s=10.0)


service = Hosted


async def fed(worker, *numbers, words=GREET):
    for number in numbers:
        await worker.handlers.on_unit(sample(number, words))
