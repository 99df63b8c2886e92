"""The loop of a binding: each call of `once` makes the next transition of its job."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial

import structlog

from reefcommon import ids, topics
from reefcommon.errors import ReefError
from reefcommon.events import Publication, Release, Unit
from reefcommon.recipe import Decision, Recipe, Refusal, seeks
from reefcommon.recipe_context import BudgetSpent
from reefkit.jobs import metrics, model
from reefkit.jobs.admission import Admission
from reefkit.jobs.candidates import Candidates
from reefkit.jobs.claims import claim
from reefkit.jobs.context import Context, Kit
from reefkit.jobs.faults import BoundedCall, place_of
from reefkit.jobs.model import Job
from reefkit.jobs.ports import Executor, Produced, Refused, Samples
from reefkit.jobs.recipe_store import Effects, Outgoing, StateConflict
from reefkit.jobs.steps import Steps
from reefkit.recipe_binding import Binding
from reefkit.recipes.models import ModelPool
from reefkit.recipes.runtime import RecipeRuntime, RecipeServices
from reefkit.recipes.seek import Seeker
from reefkit.recipes.signals import SignalStage
from reefkit.recipes.verdicts import Verdicts
from reefkit.redis_lease import LeaseLost
from reefkit.retention import TOO_OLD
from reefkit.service import BackgroundTask

log = structlog.get_logger()
MAX_WAITING = 10_000
MAX_UNSIGNALLED = 10_000
NOT_SIGNALLED = "no_signal_in_time"


class HostLoop:
    """A binding of a host: its samples and its current job."""

    def __init__(self, binding: Binding[Recipe], executor: Executor, kit: Kit) -> None:
        self.binding, self.executor, self.kit, self.store = binding, executor, kit, kit.store
        self.arrived, self._began_at = asyncio.Event(), kit.clock()
        self.context = Context(binding, executor, kit)
        services = kit.recipes or RecipeServices(
            kit.store, kit.clock, ModelPool(kit.store), kit.retry
        )
        self.runtime = executor.runtime = RecipeRuntime(binding, services)
        self.signals = SignalStage(self.runtime, self.arrived.set)
        self.verdicts = Verdicts(self.runtime)
        found = kit.seekers if seeks(binding.recipe) else None
        self.seeker = Seeker(self.runtime, kit, found) if found is not None else None
        self._steps = Steps(executor, kit.retry, self.context.note)
        self._candidates = Candidates(self.context)
        call = BoundedCall[Decision](f"{binding.dotted}: decide", kit.decide_timeout_s)
        self._admission = Admission(binding, executor, call, self.runtime.ends)
        if (last := kit.store.last(binding.key)) is not None:
            self.context.show(last)

    def tasks(self) -> tuple[BackgroundTask, ...]:
        key, seeker = self.binding.key, self.seeker
        return (
            *([BackgroundTask(f"{key}: seek", seeker.run, ends=True)] if seeker else []),
            BackgroundTask(key, self.run),
            BackgroundTask(f"{key}: signals", self.signals.run),
            BackgroundTask(f"{key}: verdicts", self.verdicts.run),
        )

    async def run(self) -> None:
        """Run until cancelled. Raises LeaseLost if another host has taken over."""
        failures = 0
        try:
            while True:
                self.arrived.clear()
                try:
                    progressed = await self.once()
                except LeaseLost:
                    raise
                # A mistake that nobody foresaw is put off too: the host's other recipes go on.
                except Exception as error:
                    failures += 1
                    reason = str(error)
                    if not isinstance(error, ReefError):
                        log.exception("job_failed", binding=self.binding.key)
                        reason = place_of(error)
                    self.context.failing = reason
                    self.context.note(reason)
                    log.warning("job_put_off", binding=self.binding.key, reason=reason)
                    await asyncio.sleep(self.kit.retry.delay_s(failures))
                    continue
                failures, self.context.failing = 0, None
                if not progressed:
                    await self.arrived.wait()
        finally:
            await self.executor.stop()
            self.runtime.stop()

    async def once(self) -> bool:
        """Make the next transition. False if it waits for an arrival."""
        # The outbox first: a job counts as announced only if its events have left.
        await self.kit.outbox.flush()
        pending = self.executor.holds_while_pending
        job = await asyncio.to_thread(self.store.current, self.binding.key, pending=pending)
        head = await asyncio.to_thread(self.store.head, self.binding.scenario)
        match job:
            case None:
                return await self._open(head)
            case Job(state="open"):
                return await self._run(job, head)
            case Job(state="produced"):
                await self._candidates.store(job, head)
            case Job(state="stored"):
                await self._candidates.announce(job, head)
            case Job(state="conflicted"):
                return await self._candidates.meet_new_head(job, head)
            case Job(state="pending"):
                return await self._candidates.pass_by(job, head)
            case _:
                return self.context.wait("waiting for the verdict on its candidate")
        return True

    # ------------------------------------------------------------------ arrivals

    async def put(self, sample: Unit) -> None:
        too_old = (self.binding.refusal((sample, TOO_OLD, None), sample.at), topics.TRAINING)
        key, text_only = self.binding.key, self.executor.text_only
        ready = not self.signals.needed
        put = partial(self.store.put, text_only=text_only, signalled=ready)
        await asyncio.to_thread(put, key, sample, too_old)
        (self.arrived if ready else self.signals.arrived).set()

    async def apply_verdict(self, job: Job, publication: Publication) -> None:
        if self.seeker is not None and job.binding == self.seeker.proposals.key:
            await asyncio.to_thread(self.seeker.proposals.apply_verdict, job, publication)
            self.verdicts.arrived.set()
        elif job.binding != self.binding.key:
            return
        else:
            await self._keep_verdict(job, publication)

    async def _keep_verdict(self, job: Job, publication: Publication) -> None:
        evaluation = model.evaluation_in(publication)
        while (after := model.after_verdict(job, publication)) is not None:
            if await self.context.save(after, expected=job.state, evaluation=evaluation):
                self.verdicts.arrived.set()
                return
            # The loop has moved the job since it was read, as from stored to announced.
            moved = await asyncio.to_thread(self.store.of_candidate, str(job.candidate_id))
            if moved is None:
                return
            job = moved

    # ------------------------------------------------------------------ samples -> output

    async def _open(self, head: Release | None) -> bool:
        if head is None:
            return self.context.wait("waiting for the scenario's first release")
        if (obstacle := self.executor.obstacle(head)) is not None:
            return self.context.wait(obstacle)
        claimed = await asyncio.to_thread(claim, self.binding, self.executor, self.kit, head)
        if claimed is not None:
            self.context.tell(claimed, "open")
            return True
        key = self.binding.key
        waiting = await asyncio.to_thread(self.store.window, key, MAX_WAITING)
        metrics.WAITING.labels(key).set(len(waiting))
        if not waiting:
            return self.context.wait("waiting for samples")
        records = {record for sample in waiting for record in sample.record_ids}
        used = await asyncio.to_thread(self.store.used_records, key, records)
        choice = await self._admission.choose(waiting, used, head)
        if choice.refused:
            await asyncio.to_thread(self.store.refuse, key, *self._refusals(choice.refused))
            await self.kit.outbox.flush()
        if not choice.batch:
            return bool(choice.refused) or self.context.wait("waiting for samples")
        job = await asyncio.to_thread(self._planned, head, choice.batch)
        once = self.executor.once_per_record
        await asyncio.to_thread(self.store.open, job, choice.batch, once_per_record=once)
        self.context.tell(job, "open", samples=len(choice.batch))
        return True

    def _planned(self, head: Release, batch: Samples) -> Job:
        return model.open_job(
            self.binding,
            self.executor.kind,
            head,
            batch,
            step=self.store.next_step(self.binding.key),
            plan=self.executor.plan(self.store.last(self.binding.key), head, batch),
            now=self.kit.clock(),
        )

    async def _run(self, job: Job, head: Release | None) -> bool:
        moved = head is not None and model.own_kind_moved(job, head, self.executor.kind)
        if moved and not await asyncio.to_thread(self.executor.has_run, job):
            # Another content of this kind serves now: staleness is decided anew.
            await asyncio.to_thread(self.store.reopen, job, {})
            self.context.tell(job, "reopened")
            return True
        self.context.doing = self.executor.doing
        samples = await asyncio.to_thread(self.store.samples, job)
        began = time.monotonic()
        try:
            result = await self._steps.run(job, samples)
        except BudgetSpent as error:
            return self.context.wait(str(error))
        metrics.DURATION_S.labels(job.binding, "step").observe(time.monotonic() - began)
        if isinstance(result, Refused) and not samples:
            result = Produced(reason=f"refused: {result.reason}", end="refused")
        if isinstance(result, Refused):
            named = result.culprits
            found = [(s, named[s.event_id], None) for s in samples if s.event_id in named]
            await asyncio.to_thread(self.store.reopen, job, *self._refusals(found))
            self.context.tell(replace(job, reason=result.reason), "failed", samples=sorted(named))
            return True
        proposes = result.end is None
        produced = replace(
            job,
            state="produced",
            # the time of a step, without that in which no host ran
            opened_at=max(job.opened_at, self._began_at),
            step=job.step if result.step is None else result.step,
            output=result.output,
            metrics=dict(result.metrics),
            proposes=proposes,
            end=result.end or "finished",
            summary=result.reason,
            candidate_id=ids.candidate_id(job.job_id) if proposes else None,
            finished_at=self.kit.clock(),
        )
        # If a call of the recipe has changed the state that this one has read, it runs again. The
        # answers of models are kept.
        with suppress(StateConflict):
            await self.context.save(produced, expected="open", effects=result.effects)
        return True

    def _refusals(self, refused: Sequence[Refusal]) -> tuple[dict[str, str], Outgoing]:
        at, binding = self.kit.clock(), self.binding
        for _, reason, _ in refused:
            # The part after a colon is free text, and would make a time series of its own.
            metrics.REFUSED.labels(binding.key, reason.partition(":")[0]).inc()
        reasons = {sample.event_id: reason for sample, reason, _ in refused}
        log.debug("samples_refused", binding=binding.key, reasons=reasons)
        return reasons, [(binding.refusal(item, at), topics.TRAINING) for item in refused]

    # ------------------------------------------------------------------ retention

    def forget(self, before: datetime) -> dict[str, int]:
        """Remove settled samples and ended jobs, and return their numbers. Blocks."""
        kept, shown = self.executor.kept_jobs(), self.executor.shown_rejections
        before_ms = int(before.timestamp() * 1000)
        # While a budget stays used up, units go on to arrive: the oldest are the stalest.
        for unit in self.store.oldest_unsignalled(self.binding.key, beyond=MAX_UNSIGNALLED):
            reasons, events = self._refusals([(unit, NOT_SIGNALLED, None)])
            effects = Effects(self.binding.key, unit.event_id)
            self.store.refuse_unsignalled(self.binding.key, reasons, events, effects)
        return self.store.forget(self.binding.key, before_ms, kept, shown)

    def contents_in_use(self) -> set[str]:
        job = self.store.current(self.binding.key, pending=True)
        return self.executor.contents_in_use(job, self.store.head(self.binding.scenario))

    # ------------------------------------------------------------------ status

    def facts(self) -> dict[str, object]:
        """Return the row of this binding in `/status`. Blocks."""
        key, context = self.binding.key, self.context
        job = self.store.current(key)
        proposed = job is not None and job.state == "announced"
        return {
            "state": context.doing,
            "proposed_at": job.finished_at if job is not None and proposed else None,
            "step": context.step,
            "knobs": self.binding.recipe.knobs.model_dump(mode="json"),
            "samples": self.store.counts("samples", key),
            "jobs": self.store.counts("jobs", key),
            "refused": self.store.refusals(key),
            "proposals": self.store.proposal_counts(self.binding.scenario),
            "last_metrics": context.last_metrics,
            "failing": context.failing,
            "last_error": context.error,
            "last_error_at": context.error_at,
            "signals": self.signals.facts() if self.signals.needed else None,
            "seek": self.seeker.facts() if self.seeker is not None else None,
            "thread": self.runtime.thread.facts(),
        }
