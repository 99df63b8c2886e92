"""Jobs: what becomes of one batch of samples, from opening to verdict. Pure: ids, times and facts come in as arguments.

    open (RUNNING) --step process--> CHECKPOINT --artifact stored, events acknowledged--> COMPLETE --verdict--> published
          |  killed: the same job again   |  killed: only what is missing is done again        |-> pending, rejected
          '-> FAILED (its samples are refused)

The actor follows the head: whatever serves the scenario is what the next step starts from. The critic only ever goes on.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from reefcommon import ids
from reefcommon.artifacts import BASE_CONTENT_ID
from reefcommon.evaluation import HELD_OUT, is_held_out
from reefcommon.events import (
    CandidateProposed,
    Publication,
    Release,
    ReleasePending,
    ReleasePublished,
    ReleaseRejected,
    SampleReady,
    StepCompleted,
)
from reefcommon.recipe import Decision, WeightRecipe
from reefkit import recipe_binding as hosting

State = Literal["running", "checkpoint", "complete", "failed"]
Verdict = Literal["published", "pending", "rejected"]


@dataclass(frozen=True, slots=True)
class Binding(hosting.Binding[WeightRecipe]):
    """One weight recipe that learns from one scenario."""

    holds_out: bool = False
    """Candidates are judged by replay: the one sample in five that judges them is never trained on."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a step starts from. `state`: the job whose critic, optimizers and count go on (None: nothing has been learnt yet).
    The actor is that job's too, unless `actor` names another job, or `adopt` a content without a saved state."""

    state: str | None = None
    actor: str | None = None
    adopt: str | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One batch and what became of it. `content_id` and `candidate_id` are set where its state was proposed."""

    job_id: str
    binding: str
    scenario: str
    base_release_id: str
    base_content: str
    sample_ids: tuple[str, ...]
    start: Start
    opened_at: datetime
    facts: Mapping[str, float] = field(default_factory=dict)
    traceparent: str = ""
    state: State = "running"
    step: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    proposes: bool = False
    content_id: str | None = None
    finished_at: datetime | None = None
    verdict: Verdict | None = None
    reason: str = ""

    @property
    def candidate_id(self) -> str | None:
        """The id of the one candidate that this job makes, if any."""
        return ids.candidate_id(self.job_id) if self.proposes else None

    @property
    def awaits_verdict(self) -> bool:
        """Its candidate is out, and nobody has judged it yet."""
        return self.state == "complete" and self.proposes and self.verdict is None


def weights_content(release: Release) -> str:
    """The weights that a release serves, whatever kind of release it is."""
    return release.contents.get("lora") or (
        release.content_id if release.kind == "lora" else BASE_CONTENT_ID
    )


def plan_start(last: Job | None, head_content: str, saved: Mapping[str, str]) -> Start:
    """Where the next step starts, given the last finished job, what serves now, and which contents have a saved state (content -> job).

    Unproposed progress on the head's own content goes on; a rejected, pending or rolled-back actor is left for the head's.
    """
    if last is None:
        return Start(adopt=None if head_content == BASE_CONTENT_ID else head_content)
    own = head_content == last.content_id
    ahead_of_head = not last.proposes and head_content == last.base_content
    if own or ahead_of_head:
        return Start(state=last.job_id)
    if head_content in saved:
        return Start(state=last.job_id, actor=saved[head_content])
    return Start(state=last.job_id, adopt=head_content)


@dataclass(frozen=True, slots=True)
class Usable:
    """Waiting samples sorted by whether their records are spent: a record trains at most once per recipe."""

    fresh: tuple[SampleReady, ...]
    spent: tuple[SampleReady, ...]


def sort_by_use(waiting: Sequence[SampleReady], trained: Collection[str]) -> Usable:
    """Split off the samples with a record that was trained on. Of two that share a record, the later waits for the fate of the earlier."""
    fresh, spent, seen = [], [], set[str]()
    for sample in waiting:
        if any(record in trained for record in sample.record_ids):
            spent.append(sample)
        elif seen.isdisjoint(sample.record_ids):
            seen.update(sample.record_ids)
            fresh.append(sample)
    return Usable(tuple(fresh), tuple(spent))


def choose(
    binding: Binding, waiting: Sequence[SampleReady], trained: Collection[str], head: Release
) -> Decision:
    """What the recipe makes of the samples that wait, under the release that serves."""
    judges = [s for s in waiting if _judges(binding, s)]
    usable = sort_by_use([s for s in waiting if not _judges(binding, s)], trained)
    decision = checked(
        binding.recipe.decide(usable.fresh, ids.LoadId.parse(head.load_id)), usable.fresh
    )
    spent = tuple((sample, "already_trained", None) for sample in usable.spent)
    held_out = tuple((sample, HELD_OUT, None) for sample in judges)
    return Decision(batch=decision.batch, refused=(*held_out, *spent, *decision.refused))


def checked(decision: Decision, offered: Sequence[SampleReady]) -> Decision:
    """A recipe's decision, where it names only what it was offered, and each once. Raises ValueError."""
    named = [
        sample.event_id
        for sample in (*decision.batch, *(sample for sample, _, _ in decision.refused))
    ]
    if strangers := set(named) - {sample.event_id for sample in offered}:
        raise ValueError(f"sample {min(strangers)} was not offered")
    if len(set(named)) < len(named):
        raise ValueError(f"{len(named) - len(set(named))} samples are named twice")
    return decision


def _judges(binding: Binding, sample: SampleReady) -> bool:
    return binding.holds_out and sample.score is not None and is_held_out(sample.event_id)


def open_job(
    binding: Binding, head: Release, batch: Sequence[SampleReady], start: Start, now: datetime
) -> Job:
    """The job of one batch. The same recipe, head and samples always give the same job."""
    sample_ids = tuple(sample.event_id for sample in batch)
    return Job(
        job_id=ids.job_id(binding.key, head.release_id, sample_ids),
        binding=binding.key,
        scenario=binding.scenario,
        base_release_id=head.release_id,
        base_content=weights_content(head),
        sample_ids=sample_ids,
        start=start,
        opened_at=now,
        facts=batch_facts(batch, ids.LoadId.parse(head.load_id), now),
        traceparent=batch[-1].traceparent,
    )


def batch_facts(
    batch: Sequence[SampleReady], serving: ids.LoadId, now: datetime
) -> dict[str, float]:
    """Staleness in releases and age in seconds of a batch, as it is taken."""
    lags = [
        lag
        for sample in batch
        if (lag := ids.LoadId.parse(sample.load_id or "").lag_behind(serving)) is not None
    ]
    ages = [(now - sample.at).total_seconds() for sample in batch]
    return {
        "lag_mean": sum(lags) / len(lags) if lags else 0.0,
        "lag_max": float(max(lags, default=0)),
        "queue_age_mean_s": sum(ages) / len(ages),
        "queue_age_max_s": max(ages),
    }


def completed(binding: Binding, job: Job) -> StepCompleted:
    """What a finished job tells. Raises ValueError for a job without a checkpoint."""
    if job.finished_at is None:
        raise ValueError(job.job_id)
    return StepCompleted(
        event_id=job.job_id,
        at=job.finished_at,
        scenario=job.scenario,
        traceparent=job.traceparent,
        recipe=binding.recipe.name,
        step=job.step,
        base_release_id=job.base_release_id,
        sample_ids=job.sample_ids,
        metrics=dict(job.metrics),
        duration_s=max((job.finished_at - job.opened_at).total_seconds(), 0.0),
        candidate_id=job.candidate_id,
        reason=None if job.proposes else "the recipe proposes no candidate after this step",
    )


def proposed(binding: Binding, job: Job) -> CandidateProposed | None:
    """The candidate of a finished job, if it makes one."""
    if job.candidate_id is None or job.content_id is None or job.finished_at is None:
        return None
    return CandidateProposed(
        event_id=job.candidate_id,
        at=job.finished_at,
        scenario=job.scenario,
        traceparent=job.traceparent,
        kind="lora",
        content_id=job.content_id,
        base_release_id=job.base_release_id,
        metrics=dict(job.metrics),
        lineage=binding.lineage(job.job_id, job.sample_ids, job.step),
        reason=f"{binding.recipe.name} step {job.step}",
    )


def verdict_of(event: Publication) -> tuple[str, Verdict] | None:
    """(candidate id, verdict) where an event of the release chain is the end of a candidate."""
    match event:
        case ReleasePublished(release=Release(candidate_id=str() as candidate)):
            return candidate, "published"
        case ReleasePending(release=Release(candidate_id=str() as candidate)):
            return candidate, "pending"
        case ReleaseRejected(candidate_id=str() as candidate):
            return candidate, "rejected"
    return None


def states_to_keep(jobs: Sequence[Job], head_content: str, kept: int) -> set[str]:
    """Jobs whose checkpoints stay, of all jobs oldest first: unfinished ones, the last, the head's, the newest published and pending."""
    keep = {
        job.job_id
        for job in jobs
        if job.state != "complete" or job.content_id == head_content or job.awaits_verdict
    }
    done = [job for job in jobs if job.state == "complete"]
    published = [job.job_id for job in done if job.verdict == "published"]
    pending = [job.job_id for job in done if job.verdict == "pending"]
    needed = {
        job_id
        for job in jobs
        if job.state == "running"
        for job_id in (job.start.state, job.start.actor)
        if job_id
    }
    return (
        keep
        | needed
        | {job.job_id for job in done[-1:]}
        | set(published[-kept:])
        | set(pending[-kept:])
    )
