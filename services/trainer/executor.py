"""The executor of weight recipes: a job is a step of the learner."""

import asyncio
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import structlog

from reefcommon.artifacts import BASE_CONTENT_ID
from reefcommon.errors import Poison
from reefcommon.events import Release
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, WeightRecipe
from reefcommon.releases import base_weights
from reefkit.jobs.context import Kit
from reefkit.jobs.model import Job, content_of, load_of
from reefkit.jobs.ports import Executor, Produced, Refused, Result, Samples
from reefkit.recipe_binding import Binding
from services.trainer import domain
from services.trainer.batches import batch_file
from services.trainer.ports import StateDamaged, StepProcess, StepReply, StepRequest
from services.trainer.states import ADAPTER, SavedStates

log = structlog.get_logger()
NO_CANDIDATE = "the recipe proposes no candidate after this step"
SKIPPED = "the recipe skipped the step: the batch changes nothing"


@dataclass(slots=True)
class WeightExecutor(Executor):
    """A weight recipe that learns from a scenario."""

    kind = "lora"
    doing = "training"
    once_per_record = True
    holds_while_pending = False

    binding: Binding[WeightRecipe]
    kit: Kit
    states: SavedStates
    process: StepProcess
    kept_states: int

    def decide(self, waiting: Samples, head: Release) -> Decision:
        return self.binding.recipe.decide(waiting, _serving(head))

    def obstacle(self, head: Release) -> str | None:
        base = base_weights(head)
        if base == BASE_CONTENT_ID:
            return None
        return (
            f"waiting: {base} serves, and an adapter of the base model would be trained for other"
            " weights; roll back to go on"
        )

    def plan(self, last: Job | None, head: Release, batch: Samples) -> Mapping[str, Any]:
        kept = self.kept_jobs()
        if last is not None and last.job_id not in kept:
            log.warning("state_lost", binding=self.binding.key, job=last.job_id)
            last = None  # the critic starts anew
        saved = {
            job.content_id: job.job_id
            for job in self.kit.store.named(kept)
            if job.content_id and job.state not in ("open", "produced", "stored")
        }
        start = domain.plan_start(last, content_of(head, "lora"), saved)
        facts = domain.batch_facts(batch, _serving(head), self.kit.clock())
        return {"start": asdict(start), "facts": facts}

    def has_run(self, job: Job) -> bool:
        return self.states.reply(job.binding, job.job_id) is not None

    async def run(self, job: Job, samples: Samples) -> Result:
        began = time.monotonic()
        # A step whose state is on disk is not made again: nothing is trained on twice.
        reply = await asyncio.to_thread(self.states.reply, job.binding, job.job_id)
        if reply is None:
            try:
                reply = await self._step(job, samples, self._path(job.job_id))
            except StateDamaged as error:
                return Refused(str(error))
        metrics = dict(job.plan.get("facts", {})) | dict(reply.metrics)
        metrics["duration/step_s"] = time.monotonic() - began
        if not reply.proposes:
            reason = SKIPPED if reply.skipped else NO_CANDIDATE
            return Produced({}, metrics, reply.step, reason, end="finished")
        return Produced({}, metrics, reply.step, f"{self.binding.recipe.name} step {reply.step}")

    async def probe(self, job: Job, samples: Samples) -> None:
        await self._step(job, samples, None)

    def tree(self, job: Job, scratch: Path) -> Path:
        adapter = self._path(job.job_id) / ADAPTER
        if not adapter.is_dir():
            raise Poison(f"the state of {job.job_id} is gone from the disk")
        return adapter

    def kept_jobs(self) -> Collection[str]:
        return self.states.kept(self.binding.key)

    def contents_in_use(self, job: Job | None, head: Release | None) -> set[str]:
        adopted = domain.start_of(job).adopt if job is not None else None
        return {adopted} if adopted else set()

    def tidy(self, head: Release | None) -> None:
        content = content_of(head, "lora") if head is not None else BASE_CONTENT_ID
        jobs = self.kit.store.named(self.kept_jobs())
        keep = domain.states_to_keep(jobs, content, self.kept_states)
        self.states.prune(self.binding.key, keep)

    async def stop(self) -> None:
        await self.process.stop()

    async def _step(self, job: Job, samples: Samples, out: Path | None) -> StepReply:
        start, kit = domain.start_of(job), self.kit
        adopt = start.adopt
        if adopt is not None and adopt != BASE_CONTENT_ID:
            tree = await asyncio.to_thread(kit.serving_tree, adopt, job.scenario)
            adopt = str(tree)
        with ExitStack() as stack:
            written = batch_file(kit.home / "batches", samples)
            batch = await asyncio.to_thread(stack.enter_context, written)
            request = StepRequest(
                job_id=job.job_id,
                state=self._path(start.state) if start.state else None,
                actor=self._path(start.actor) if start.actor else None,
                adopt=adopt,
                batch=batch,
                out=out,
            )
            return await self.process.step(request)

    def _path(self, job_id: str) -> Path:
        return self.states.path(self.binding.key, job_id)


def _serving(head: Release) -> LoadId:
    return LoadId.parse(load_of(head, "lora"))
