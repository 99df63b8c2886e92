"""Jobs: what becomes of one window of samples, from opening to verdict. Pure: ids, times and trees come in as arguments.

open --propose--> proposed --admit, store--> awaiting --verdict--> selected | rejected | failed
   |                  |                          |-> pending (a person decides)
   '-> empty          '-> refused (admission)    '-> conflicted --the head has moved--> the same proposal on the new head
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Literal

from reefcommon import ids
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
from reefcommon.harness.tree import HarnessRecipe, Mutation, Tree
from reefkit import recipe_binding as hosting

State = Literal[
    "open",
    "proposed",
    "awaiting",
    "pending",
    "conflicted",
    "selected",
    "rejected",
    "refused",
    "empty",
    "failed",
    "superseded",
]
UNFINISHED: tuple[State, ...] = ("open", "proposed", "awaiting", "pending", "conflicted")
REJECTED: tuple[State, ...] = ("rejected", "refused")
"""What a recipe is shown as its own mistakes; a lost race is not one."""
LOST: tuple[State, ...] = ("rejected", "failed", "superseded")
"""Ended without a release: what such a job stored is of no more use."""
MAX_ATTEMPTS_ON_NEW_HEADS = 3


@dataclass(frozen=True, slots=True)
class Binding(hosting.Binding[HarnessRecipe]):
    """One harness recipe that learns from one scenario."""


@dataclass(frozen=True, slots=True)
class Job:
    """One window and what became of it. `base_content`: the tree that it changes, None for the empty one."""

    job_id: str
    binding: str
    scenario: str
    step: int
    base_release_id: str
    base_content: str | None
    sample_ids: tuple[str, ...]
    opened_at: datetime
    state: State = "open"
    attempt: int = 1
    mutations: tuple[Mutation, ...] = ()
    content_id: str | None = None
    candidate_id: str | None = None
    reason: str = ""


def tree_content(release: Release) -> str | None:
    """The content of kind `harness` that a release serves; None where it serves none (the empty tree)."""
    return release.contents.get("harness") or (
        release.content_id if release.kind == "harness" else None
    )


def open_job(
    binding: Binding, head: Release, batch: Sequence[SampleReady], step: int, at: datetime
) -> Job:
    """The job of one window. The same recipe, head and samples always give the same job."""
    sample_ids = tuple(sample.event_id for sample in batch)
    return Job(
        job_id=ids.job_id(binding.key, head.release_id, sample_ids),
        binding=binding.key,
        scenario=binding.scenario,
        step=step,
        base_release_id=head.release_id,
        base_content=tree_content(head),
        sample_ids=sample_ids,
        opened_at=at,
    )


def on_new_head(job: Job, head: Release) -> Job | None:
    """The same proposal on the head that won the race; None where it has lost often enough."""
    if job.attempt >= MAX_ATTEMPTS_ON_NEW_HEADS:
        return None
    return replace(
        job,
        job_id=ids.job_id(job.binding, head.release_id, job.sample_ids),
        base_release_id=head.release_id,
        base_content=tree_content(head),
        attempt=job.attempt + 1,
        state="proposed",
        content_id=None,
        candidate_id=None,
        reason="",
    )


def candidate_in(publication: Publication) -> str | None:
    """The candidate that a publication speaks of; None where it speaks of none."""
    match publication:
        case ReleasePublished():
            return publication.release.candidate_id
        case ReleasePending():
            return publication.release.candidate_id or publication.event_id
        case ReleaseRejected():
            return publication.candidate_id
        case _:
            return None


def settled(job: Job, publication: Publication) -> Job | None:
    """The job after the verdict on its candidate; None where this changes nothing (a repeat, or the job is finished)."""
    if job.state not in ("awaiting", "pending", "conflicted"):
        return None
    match publication:
        case ReleasePublished():
            return replace(job, state="selected", reason=publication.release.reason)
        case ReleasePending() if job.state == "awaiting":
            return replace(job, state="pending", reason="waits for a person")
        case ReleaseRejected() if _lost_a_race(job, publication):
            return (
                replace(job, state="conflicted", reason=publication.reason)
                if job.state != "conflicted"
                else None
            )
        case ReleaseRejected(outcome="rejected") if _on_its_merits(publication):
            return replace(job, state="rejected", reason=publication.reason)
        case ReleaseRejected():
            return replace(job, state="failed", reason=publication.reason)
        case _:
            return None


def _lost_a_race(job: Job, publication: ReleaseRejected) -> bool:
    """Whether another release became the head first: seen by the publisher, or by the evaluator, which then compares nothing."""
    found = publication.evaluation
    stale = found is not None and (
        found.head_release_id != job.base_release_id or found.reason.startswith("stale_base")
    )
    return publication.outcome == "conflicted" or stale


def _on_its_merits(publication: ReleaseRejected) -> bool:
    """Whether the candidate was compared and lost; an evaluation that could not run says nothing of the proposal."""
    return publication.evaluation is None or publication.evaluation.verdict == "reject"


def candidate(
    binding: Binding, job: Job, tree: Tree, *, at: datetime, traceparent: str
) -> CandidateProposed:
    """The event of an admitted proposal whose tree is in the artifact store."""
    assert job.candidate_id is not None
    assert job.content_id is not None
    return CandidateProposed(
        event_id=job.candidate_id,
        at=at,
        scenario=job.scenario,
        traceparent=traceparent,
        kind="harness",
        content_id=job.content_id,
        base_release_id=job.base_release_id,
        metrics={
            "entries": float(len(tree)),
            "mutations": float(len(job.mutations)),
            "samples": float(len(job.sample_ids)),
        },
        lineage=binding.lineage(job.job_id, job.sample_ids, job.step),
        reason="; ".join(mutation.reason for mutation in job.mutations if mutation.reason),
    )


def step_completed(
    job: Job, recipe: HarnessRecipe, *, at: datetime, traceparent: str = ""
) -> StepCompleted:
    """The event of a finished step, with the reason where it made no candidate."""
    return StepCompleted(
        event_id=job.job_id,
        at=at,
        scenario=job.scenario,
        traceparent=traceparent,
        recipe=recipe.name,
        step=job.step,
        base_release_id=job.base_release_id,
        sample_ids=job.sample_ids,
        metrics={"mutations": float(len(job.mutations)), "refused": float(job.state == "refused")},
        duration_s=max(0.0, (at - job.opened_at).total_seconds()),
        candidate_id=job.candidate_id,
        reason=None if job.candidate_id else f"{job.state}: {job.reason}",
    )
