"""Jobs, and how a verdict or a new head changes them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Literal, get_args

from reefcommon import events, ids
from reefcommon.artifacts import BASE_CONTENT_ID
from reefcommon.events import Kind, Publication, Release, ReleasePending, Unit
from reefcommon.events import ReleasePublished as Published
from reefcommon.events import ReleaseRejected as Rejected
from reefcommon.recipe import Judged, Recipe
from reefcommon.releases import LOAD_GROUPS, loads_of
from reefkit.recipe_binding import Binding

Unfinished = Literal["open", "produced", "stored", "announced", "conflicted"]
State = Literal[Unfinished, "pending", "published", "rejected", "aborted", "finished", "refused"]
UNFINISHED: tuple[State, ...] = get_args(Unfinished)
JUDGEABLE: tuple[State, ...] = ("stored", "announced", "pending", "conflicted")
SHOWN: tuple[State, ...] = ("rejected", "refused")
"""The states that a recipe is shown as its mistakes. A lost race is none."""
LOST: tuple[State, ...] = ("rejected", "aborted")
"""The contents of such jobs are dropped after a while."""
MAX_ATTEMPTS_ON_NEW_HEADS = 3
MAX_KEPT_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Job:
    """A batch of samples and its fate. `plan` and `output` (JSON) belong to the executor.

    `end` is the final state without a candidate, `summary` a text about the step, `reason` the
    cause of the state.
    """

    job_id: str
    binding: str
    scenario: str
    base_release_id: str
    base_load: str
    base_content: str
    sample_ids: tuple[str, ...]
    opened_at: datetime
    step: int
    traceparent: str = ""
    plan: Mapping[str, Any] = field(default_factory=dict)
    state: State = "open"
    attempt: int = 1
    output: Mapping[str, Any] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    proposes: bool = False
    end: Literal["finished", "refused"] = "finished"
    content_id: str | None = None
    candidate_id: str | None = None
    finished_at: datetime | None = None
    summary: str = ""
    reason: str = ""
    evaluation: events.Evaluation | None = None

    @property
    def made_at(self) -> datetime:
        return self.finished_at or self.opened_at


# ------------------------------------------------------------------ releases, seen from one kind


def load_of(release: Release, kind: Kind) -> str:
    return loads_of(release)[LOAD_GROUPS[kind]]


def content_of(release: Release, kind: Kind) -> str:
    """Return the content of a kind that a release serves; `base` or "" if none."""
    own = release.content_id if release.kind == kind else None
    none = BASE_CONTENT_ID if kind == "lora" else ""
    return release.contents.get(kind) or own or none


def own_kind_moved(job: Job, head: Release, kind: Kind) -> bool:
    """Return whether the job's kind has another load than at its base."""
    # Another kind's release does not age the content: weights compare with weights alone.
    if head.release_id == job.base_release_id:
        return False
    # Jobs of an earlier version know no load: for them every other head counts.
    return load_of(head, kind) != job.base_load


# ------------------------------------------------------------------ transitions


def open_job(
    binding: Binding[Recipe],
    kind: Kind,
    head: Release,
    batch: Sequence[Unit],
    *,
    step: int,
    plan: Mapping[str, Any],
    now: datetime,
) -> Job:
    """Return the job of a batch. Equal recipe, head and samples give an equal job id."""
    sample_ids = tuple(sample.event_id for sample in batch)
    return Job(
        job_id=ids.job_id(binding.key, head.release_id, sample_ids),
        binding=binding.key,
        scenario=binding.scenario,
        **_base(head, kind),
        sample_ids=sample_ids,
        opened_at=now,
        step=step,
        traceparent=batch[-1].traceparent,
        plan=plan,
    )


def open_proposal(
    binding: Binding[Recipe],
    kind: Kind,
    head: Release,
    proposal: Mapping[str, Any],
    *,
    step: int,
    now: datetime,
) -> Job:
    """Return the job of a proposal (an event in JSON types), which has no samples."""
    return Job(
        job_id="job-" + ids.digest("proposal", binding.key, proposal["event_id"]),
        binding=binding.key,
        scenario=binding.scenario,
        **_base(head, kind),
        sample_ids=(),
        opened_at=now,
        step=step,
        traceparent=proposal.get("traceparent") or "",
        plan={"proposal": proposal},
    )


def on_head(job: Job, head: Release, kind: Kind, *, again: bool) -> Job:
    """Return the job on the base `head`. `again`: an earlier candidate has used its id."""
    moved = replace(job, **_base(head, kind))
    if not again:
        return moved
    # The id of the job of these samples on the new head: a repeat gives the same candidate.
    made_of = job.sample_ids or (job.job_id,)
    candidate = ids.candidate_id(ids.job_id(job.binding, head.release_id, made_of))
    return replace(moved, attempt=job.attempt + 1, candidate_id=candidate)


def _base(head: Release, kind: Kind) -> dict[str, Any]:
    served = {"base_load": load_of(head, kind), "base_content": content_of(head, kind)}
    return {"base_release_id": head.release_id, **served}


def candidates_in(publication: Publication) -> list[str]:
    """Return the candidates that a publication decides on: two if they were judged together."""
    match publication:
        case Published() | ReleasePending():
            release = publication.release
            partner = release.partner.candidate_id if release.partner is not None else None
            pending = publication.event_id if isinstance(publication, ReleasePending) else None
            found = [release.candidate_id or pending, partner]
        case Rejected():
            found = [publication.candidate_id]
        case _:
            found = []
    return [candidate for candidate in found if candidate]


def evaluation_in(publication: Publication) -> events.Evaluation | None:
    match publication:
        case Published() | ReleasePending():
            return publication.release.evaluation
        case Rejected():
            return publication.evaluation
    return None


def judged(
    binding: Binding[Recipe], kind: Kind, job: Job, evaluation: events.Evaluation | None
) -> Judged | None:
    """Return the verdict on a job for its recipe; None if it has none."""
    outcome = job.state
    # A conflicted candidate comes again, or is aborted.
    if outcome not in ("published", "pending", "rejected", "aborted") or job.content_id is None:
        return None
    return Judged(candidate(binding, kind, job), outcome, job.reason, evaluation)


def after_verdict(job: Job, publication: Publication) -> Job | None:
    """Return the job after the verdict; None if it stays as it is."""
    if (evaluation := evaluation_in(publication)) is not None:
        job = replace(job, evaluation=_kept(evaluation))
    match publication:
        # Whatever was said before: a person may have promoted it all the same.
        case Published() if job.state != "published":
            return replace(job, state="published", reason=publication.release.reason)
        case ReleasePending() if job.state in ("stored", "announced"):
            return replace(job, state="pending", reason="waits for a person")
        case Rejected() if job.state in JUDGEABLE:
            if (state := _rejection(job, publication)) != job.state:
                return replace(job, state=state, reason=publication.reason)
    return None


def _kept(evaluation: events.Evaluation) -> events.Evaluation:
    # For people and for the recipe's next proposal: an agent's answer may be long.
    tasks = [
        task.model_copy(
            update={
                "candidate_answer": task.candidate_answer[:MAX_KEPT_CHARS],
                "head_answer": task.head_answer[:MAX_KEPT_CHARS],
            }
        )
        for task in evaluation.tasks
    ]
    return evaluation.model_copy(update={"tasks": tuple(tasks)})


def _rejection(job: Job, publication: Rejected) -> State:
    evaluation = publication.evaluation
    compared = evaluation is None or evaluation.verdict == "reject"
    # The evaluator may judge on a newer head by itself: then it has compared pairs.
    stale = evaluation is not None and (
        evaluation.reason.startswith("stale_base")
        or (compared and not evaluation.pairs and evaluation.head_release_id != job.base_release_id)
    )
    if publication.outcome == "conflicted" or stale:
        return "conflicted"
    return "rejected" if publication.outcome == "rejected" and compared else "aborted"


# ------------------------------------------------------------------ events


def step_completed(binding: Binding[Recipe], job: Job) -> events.StepCompleted:
    told = _common(job)
    return events.StepCompleted(
        event_id=job.job_id,
        recipe=binding.recipe.name,
        step=job.step,
        sample_ids=job.sample_ids,
        duration_s=max((told["at"] - job.opened_at).total_seconds(), 0.0),
        candidate_id=job.candidate_id,
        reason=None if job.candidate_id else job.summary,
        **told,
    )


def candidate(binding: Binding[Recipe], kind: Kind, job: Job) -> events.CandidateProposed:
    assert job.candidate_id is not None
    assert job.content_id is not None
    return events.CandidateProposed(
        event_id=job.candidate_id,
        kind=kind,
        content_id=job.content_id,
        lineage=binding.lineage(job.job_id, job.sample_ids, job.step),
        reason=job.summary,
        **_common(job),
    )


def _common(job: Job) -> dict[str, Any]:
    names = ("scenario", "traceparent", "base_release_id", "metrics")
    return {"at": job.made_at} | {name: getattr(job, name) for name in names}
