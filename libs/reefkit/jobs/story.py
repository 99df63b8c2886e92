"""A step as people read it: proposal, dialogue, episodes, verdict."""

from typing import Any

from reefkit.jobs.model import Job

_SHOWN = (
    *("job_id", "binding", "scenario", "step", "state", "attempt", "summary", "reason"),
    *("base_release_id", "candidate_id", "content_id", "metrics"),
)


def story_of(job: Job) -> dict[str, Any]:
    """Return a step in JSON types."""
    proposal = job.plan.get("proposal") or {}
    names = ("event_id", "type", "reason", "text", "by_admin")
    given = {name: proposal[name] for name in names if name in proposal}
    mutations, dialogue = job.output.get("mutations", ()), job.output.get("dialogue", ())
    if job.state == "refused":
        # A text that was refused may be a credential.
        given = {name: given[name] for name in given if name in ("event_id", "type")}
        mutations = [{"op": one["op"]} for one in mutations]
        dialogue = [{**exchange, "answers": []} for exchange in dialogue]
    evaluation = job.evaluation.model_dump(mode="json") if job.evaluation is not None else None
    return {
        **{name: getattr(job, name) for name in _SHOWN},
        "opened_at": job.opened_at.isoformat(),
        "finished_at": job.finished_at.isoformat() if job.finished_at else None,
        "samples": list(job.sample_ids),
        "proposal": given or None,
        "mutations": list(mutations),
        "dialogue": list(dialogue),
        "evaluation": evaluation,
    }
