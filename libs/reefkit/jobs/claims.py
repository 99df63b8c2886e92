"""Proposals of people and agents: the oldest goes before the recipe's own."""

from reefcommon.events import HarnessProposed, Proposal, Release
from reefcommon.recipe import Recipe
from reefkit.jobs import model
from reefkit.jobs.context import Kit
from reefkit.jobs.model import Job
from reefkit.jobs.ports import Executor
from reefkit.recipe_binding import Binding


def claim(binding: Binding[Recipe], executor: Executor, kit: Kit, head: Release) -> Job | None:
    """Open the job of the oldest proposal that waits. None if there is none. Blocks."""
    store = kit.store
    if not executor.proposals_at_most():
        return None
    proposal = store.oldest_proposal(binding.scenario)
    if proposal is None:
        return None
    step, now = store.next_step(binding.key), kit.clock()
    job = model.open_proposal(binding, executor.kind, head, proposal, step=step, now=now)
    # Another recipe of the scenario may have it by now.
    return job if store.claim(job, proposal["event_id"]) else None


def objection(bound: list[tuple[Binding[Recipe], Executor]], event: Proposal) -> str:
    """Return why no recipe of a scenario takes a proposal; "" if one does."""
    if not bound:
        return f"refused: scenario {event.scenario!r} has no recipe for a harness"
    ruled = all(binding.unjudged for binding, _ in bound)
    if ruled and isinstance(event, HarnessProposed) and not event.by_admin:
        remedy = "send it with a token of scope admin"
        return f"refused: policy always publishes all proposals unjudged; {remedy}"
    return ""
