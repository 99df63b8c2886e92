"""The second half of a job: from the output of its step to the verdict on its candidate."""

import asyncio
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from reefcommon import topics
from reefcommon.artifacts import describe
from reefcommon.errors import Poison
from reefcommon.events import Release
from reefkit.jobs import metrics, model
from reefkit.jobs.context import Context
from reefkit.jobs.model import Job, State
from reefkit.jobs.recipe_store import Outgoing


class Candidates:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._kind = context.executor.kind

    async def store(self, job: Job, head: Release | None) -> None:
        """produced -> stored, finished or refused."""
        context = self._context
        if not job.proposes:
            await self._end(job, job.end, job.summary)
            return
        if head is not None and self._fits(job, head):
            job = model.on_head(job, head, self._kind, again=job.attempt > 1)
        context.doing = "storing the candidate"
        began = time.monotonic()
        # The lock until the job is saved: a content that was rejected before may be made again,
        # and retention must not drop it in between.
        async with context.kit.storing:
            try:
                content = await asyncio.to_thread(self._put, job)
            except Poison as error:
                await self._end(job, "refused", f"refused: {error}")
                return
            spent = time.monotonic() - began
            timed = {**job.metrics, "duration/put_s": spent}
            stored = replace(job, state="stored", content_id=content, metrics=timed)
            await context.save(stored, expected="produced", events=self._events(stored))
        metrics.DURATION_S.labels(job.binding, "put").observe(spent)

    async def announce(self, job: Job, head: Release | None) -> None:
        """stored -> announced, when the outbox is empty."""
        await self._context.save(replace(job, state="announced"), expected="stored")
        await self._context.finish_step(job, head)

    async def meet_new_head(self, job: Job, head: Release | None) -> bool:
        """conflicted -> stored, produced or aborted, as `on_stale` says."""
        context, policy = self._context, self._context.binding.on_stale
        if head is None or head.release_id == job.base_release_id:
            return context.wait("waiting for the head that its candidate conflicts with")
        if policy == "refuse":
            return await self._abort(job, f"on_stale: refuse; {job.reason}")
        if job.attempt >= model.MAX_ATTEMPTS_ON_NEW_HEADS:
            return await self._abort(job, "lost the race for the head too often")
        again = replace(model.on_head(job, head, self._kind, again=True), reason="")
        moved = model.own_kind_moved(job, head, self._kind)
        if not moved or (policy == "reevaluate" and not context.executor.rebases):
            stored = replace(again, state="stored", finished_at=context.kit.clock())
            return await context.save(stored, expected="conflicted", events=self._events(stored))
        if context.executor.rebases:
            return await context.save(replace(again, state="produced"), expected="conflicted")
        return await self._abort(job, f"on_stale: merge, but {self._kind} has changed")

    async def pass_by(self, job: Job, head: Release | None) -> bool:
        """pending -> aborted, if its own kind has moved: then it can never be promoted."""
        if head is None or not model.own_kind_moved(job, head, self._kind):
            return self._context.wait("waiting for a person to decide on its candidate")
        return await self._abort(job, f"the head moved to {head.release_id} while this waited")

    def _fits(self, job: Job, head: Release) -> bool:
        newer = head.release_id != job.base_release_id
        refused = self._context.binding.on_stale == "refuse"
        return newer and not refused and not model.own_kind_moved(job, head, self._kind)

    def _put(self, job: Job) -> str:
        executor, binding = self._context.executor, self._context.binding
        with tempfile.TemporaryDirectory(prefix="reef-candidate-") as scratch:
            tree = executor.tree(job, Path(scratch))
            lineage = binding.lineage(job.job_id, job.sample_ids, job.step)
            base, kept = job.base_content, dict(job.metrics)
            manifest = describe(tree, self._kind, base=base, metrics=kept, lineage=lineage)
            return self._context.kit.artifacts.put(tree, manifest, job.scenario)

    def _events(self, job: Job) -> Outgoing:
        binding = self._context.binding
        proposed = (model.candidate(binding, self._kind, job), topics.CANDIDATES)
        if job.attempt > 1:  # the step was told with the first candidate
            return (proposed,)
        return (proposed, (model.step_completed(binding, job), topics.TRAINING))

    async def _end(self, job: Job, state: State, reason: str) -> None:
        context = self._context
        ended = replace(job, state=state, candidate_id=None, summary=reason, reason=reason)
        told = (model.step_completed(context.binding, ended), topics.TRAINING)
        events = (told,) if job.attempt == 1 else ()
        await context.save(ended, expected="produced", events=events)
        await context.kit.outbox.flush()
        head = await asyncio.to_thread(context.kit.store.head, job.scenario)
        await context.finish_step(ended, head)

    async def _abort(self, job: Job, reason: str) -> bool:
        aborted = replace(job, state="aborted", reason=reason)
        return await self._context.save(aborted, expected=job.state)
