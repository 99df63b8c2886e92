"""The executor of harness recipes: a job is a proposal of mutations, admitted by the rules."""

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from reefcommon.errors import Poison
from reefcommon.events import Release, SampleReady
from reefcommon.harness.admission import MAX_MUTATIONS, Adapter, admit
from reefcommon.harness.files import read_tree, write_tree
from reefcommon.harness.text import value_objection
from reefcommon.harness.tree import (
    MAX_REJECTED,
    HarnessRecipe,
    Inadmissible,
    Mutation,
    Rejection,
    Tree,
)
from reefcommon.recipe import Decision
from reefkit.jobs.context import Kit
from reefkit.jobs.model import Job, content_of
from reefkit.jobs.ports import Executor, Produced, Refused, Result, Samples
from reefkit.jobs.recipe_store import Effects
from reefkit.recipe_binding import Binding
from reefkit.recipes.host_ends import EndsHost
from reefkit.recipes.models import StepBudgetSpent


@dataclass(slots=True)
class HarnessExecutor(Executor):
    """A harness recipe that learns from a scenario."""

    kind = "harness"
    doing = "proposing"
    text_only = True
    rebases = True
    shown_rejections = MAX_REJECTED

    binding: Binding[HarnessRecipe]
    kit: Kit
    adapter: Adapter
    propose_timeout_s: float
    max_waiting_proposals: int = 8
    step_calls: int = 0

    def proposals_at_most(self) -> int:
        return self.max_waiting_proposals

    def decide(self, waiting: Samples, head: Release) -> Decision:
        return self.binding.recipe.decide(waiting)

    async def run(self, job: Job, samples: Samples) -> Result:
        if job.base_content:
            await asyncio.to_thread(self.kit.serving_tree, job.base_content, job.scenario)
        base = await asyncio.to_thread(self._base, job)
        given = job.plan.get("proposal")
        if given is not None and "mutations" in given:
            return await asyncio.to_thread(self._given, base, given)
        samples = (instruction(given),) if given is not None else samples
        rejected = await asyncio.to_thread(self._rejected, job.binding)
        ctx = self.runtime.context(job.job_id, calls=self.step_calls)
        # Saved with the job before it is used: a recipe that asks a model would answer otherwise
        # the second time.
        recipe, limit_s = self.binding.recipe, self.propose_timeout_s
        try:
            asked = self.kit.store.asked_for(job.binding, job.job_id)
            async with self.runtime.ends.noted("propose", f"{job.job_id} {asked}"):
                given_to = (recipe, ctx, base, samples, rejected)
                mutations = await self.runtime.call(propose, *given_to, timeout_s=limit_s)
        except EndsHost as error:
            return Refused(str(error), {sample.event_id: str(error) for sample in samples})
        except StepBudgetSpent as error:
            spent, effects = f"budget: {error}", Effects(job.binding, job.job_id)
            dialogue_only = {"dialogue": ctx.dialogue()}
            return Produced(dialogue_only, reason=spent, end="finished", effects=effects)
        if not all(isinstance(mutation, Mutation) for mutation in mutations):
            raise Poison(f"{self.binding.dotted} proposed something that is not a Mutation")
        produced = await asyncio.to_thread(self._admitted, base, mutations, len(samples))
        dialogue = ctx.dialogue()
        output = {**produced.output, "dialogue": dialogue} if dialogue else produced.output
        return replace(produced, output=output, effects=ctx.effects())

    def _given(self, base: Tree, proposal: Mapping[str, Any]) -> Produced:
        reason = proposal["reason"]
        if (found := value_objection(reason)) is not None:
            return Produced(reason=f"refused: its reason {found}", end="refused")
        try:
            mutations = tuple(Mutation(**item) for item in proposal["mutations"])
        except TypeError:
            fields = "a mutation has op, id, options and reason, and nothing else"
            return Produced(reason=f"refused: {fields}", end="refused")
        produced = self._admitted(base, mutations, 0)
        return replace(produced, reason=reason) if reason and produced.end is None else produced

    def _admitted(self, base: Tree, mutations: tuple[Mutation, ...], samples: int) -> Produced:
        if not mutations:
            reason = "empty: the recipe proposes nothing"
            return Produced(metrics={"mutations": 0.0}, reason=reason, end="finished")
        output = {"mutations": [asdict(item) for item in mutations]}
        metrics = {"mutations": float(len(mutations)), "samples": float(samples)}
        try:
            tree = admit(base, mutations, self.adapter)
        except Inadmissible as error:
            metrics["refused"] = 1.0
            return Produced(output, metrics, reason=f"refused: {error}", end="refused")
        reason = "; ".join(mutation.reason for mutation in mutations if mutation.reason)
        return Produced(output, metrics | {"entries": float(len(tree))}, reason=reason)

    def tree(self, job: Job, scratch: Path) -> Path:
        write_tree(admit(self._base(job), mutations_of(job), self.adapter), scratch)
        return scratch

    def contents_in_use(self, job: Job | None, head: Release | None) -> set[str]:
        served = content_of(head, "harness") if head is not None else ""
        return {content for content in (served, job.base_content if job else "") if content}

    def _base(self, job: Job) -> Tree:
        if not job.base_content:
            return ()
        kit = self.kit
        return read_tree(kit.trees.fetch(kit.artifacts, job.base_content, job.scenario))

    def _rejected(self, binding: str) -> list[Rejection]:
        jobs = self.kit.store.rejections(binding, MAX_REJECTED)
        return [
            Rejection(mutations_of(job), job.reason, job.evaluation.tasks if job.evaluation else ())
            for job in jobs
        ]


async def propose(recipe: HarnessRecipe, *given: Any) -> tuple[Mutation, ...]:
    # On the recipe's thread: a generator is its code too, and may have no end.
    return tuple(islice(await recipe.propose(*given), MAX_MUTATIONS + 1))


def instruction(proposal: Mapping[str, Any]) -> SampleReady:
    """Return an instruction as a unit: its words are its feedback, and no record made it."""
    return SampleReady(
        event_id=proposal["event_id"],
        at=proposal["at"],
        scenario=proposal["scenario"],
        record_ids=(),
        session_id=proposal.get("session_id"),
        feedback=proposal["text"],
        metadata={"instruction": True},
        messages=({"role": "user", "content": proposal["text"]},),
        untrainable="instruction",
        recorded_at=proposal["at"],
    )


def mutations_of(job: Job) -> tuple[Mutation, ...]:
    return tuple(Mutation(**item) for item in job.output.get("mutations", ()))
