"""The start of a step, its staleness, and which saved states stay. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from reefcommon.artifacts import BASE_CONTENT_ID
from reefcommon.events import Unit
from reefcommon.ids import LoadId
from reefkit.jobs.model import UNFINISHED, Job


@dataclass(frozen=True, slots=True)
class Start:
    """The start of a step. `state`: the job whose critic, optimizers and count go on.

    So does its actor, unless `actor` names another job, or `adopt` a content.
    """

    state: str | None = None
    actor: str | None = None
    adopt: str | None = None


def start_of(job: Job) -> Start:
    return Start(**job.plan.get("start", {}))


def plan_start(last: Job | None, head_content: str, saved: Mapping[str, str]) -> Start:
    """Return the start of the next step. `saved`: the jobs of contents with a saved state."""
    # The actor follows the head: the next step starts from the weights that serve, so a rejected,
    # pending or rolled-back actor is left. Progress that was not proposed goes on if the head
    # still serves its base. The critic only goes on.
    if last is None:
        return Start(adopt=None if head_content == BASE_CONTENT_ID else head_content)
    own = head_content == last.content_id
    ahead_of_head = not last.proposes and head_content == last.base_content
    if own or ahead_of_head:
        return Start(state=last.job_id)
    if head_content in saved:
        return Start(state=last.job_id, actor=saved[head_content])
    return Start(state=last.job_id, adopt=head_content)


def batch_facts(batch: Sequence[Unit], serving: LoadId, now: datetime) -> dict[str, float]:
    """Return the staleness (in loads) and the age (in seconds) of a batch."""
    lags = [lag for sample in batch if (lag := _lag(sample, serving)) is not None]
    ages = [(now - sample.at).total_seconds() for sample in batch]
    return {
        "lag_mean": sum(lags) / len(lags) if lags else 0.0,
        "lag_max": float(max(lags, default=0)),
        "queue_age_mean_s": sum(ages) / len(ages),
        "queue_age_max_s": max(ages),
    }


def _lag(sample: Unit, serving: LoadId) -> int | None:
    try:
        return LoadId.parse(sample.load_id or "").lag_behind(serving)
    except ValueError:  # a recipe may train on samples that no known weights have made
        return None


def states_to_keep(jobs: Sequence[Job], head_content: str, kept: int) -> set[str]:
    """Return the jobs whose states stay. `jobs`: oldest first; `kept`: published jobs."""
    # A rollback to a kept release goes on with its optimizer; without a state it starts anew.
    keep = {job.job_id for job in jobs if job.state in UNFINISHED or job.content_id == head_content}
    done = [job for job in jobs if job.state not in ("open", "produced", "stored")]
    for state in ("published", "pending"):
        keep |= set([job.job_id for job in done if job.state == state][-kept:])
    starts = [start_of(job) for job in jobs if job.state == "open"]
    needed = {job_id for start in starts for job_id in (start.state, start.actor) if job_id}
    return keep | needed | {job.job_id for job in done[-1:]}
