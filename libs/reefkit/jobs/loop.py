"""The loop of one binding: each call of `once` makes the next transition of its job."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import structlog

from reefcommon import ids, topics
from reefcommon.artifacts import ArtifactStore, describe
from reefcommon.errors import Poison, Transient
from reefcommon.events import Publication, Release, SampleReady
from reefcommon.recipe import Decision, Recipe
from reefkit.jobs import metrics, model
from reefkit.jobs.admission import Admission
from reefkit.jobs.faults import BoundedCall
from reefkit.jobs.model import Job, Refusal, State
from reefkit.jobs.outbox import Outbox
from reefkit.jobs.ports import Executor, LeaseLost, Nothing, Refused
from reefkit.jobs.steps import Steps
from reefkit.jobs.store import JobStore, Outgoing
from reefkit.recipe_binding import Binding
from reefkit.retention import TOO_OLD
from reefkit.retry import RetryPolicy

log = structlog.get_logger()
MAX_WAITING = 10_000


@dataclass(slots=True)
class Shown:
    """The state of a loop, for `/status` and `/readyz`."""

    doing: str = "starting"
    step: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    error: str | None = None
    error_at: datetime | None = None
    failing: str | None = None


@dataclass(frozen=True, slots=True)
class Ports:
    """The outside of all loops of a host. `storing`: see `reefkit.rejected_contents`."""

    outbox: Outbox
    artifacts: ArtifactStore
    clock: Callable[[], datetime]
    retry: RetryPolicy
    decide_timeout_s: float = 60.0
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)


class HostLoop:
    """One binding of a host: its samples, its current job, and what it shows."""

    def __init__(
        self, binding: Binding[Recipe], store: JobStore, executor: Executor, ports: Ports
    ) -> None:
        self.binding, self.store, self.executor, self.ports = binding, store, executor, ports
        self.arrived = asyncio.Event()
        self.shown = Shown()
        self._steps = Steps(executor, ports.retry, self._note)
        call = BoundedCall[Decision](f"{binding.dotted}: decide", ports.decide_timeout_s)
        self._admission = Admission(binding, executor, call)
        if (last := store.last(binding.key)) is not None:
            self._show(last)

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
                except Transient as error:
                    failures += 1
                    self._note(str(error))
                    self.shown.failing = str(error)
                    log.warning(
                        "job_interrupted",
                        binding=self.binding.key,
                        attempt=failures,
                        reason=str(error),
                    )
                    await asyncio.sleep(self.ports.retry.delay_s(failures))
                    continue
                failures, self.shown.failing = 0, None
                if not progressed:
                    await self.arrived.wait()
        finally:
            await self.executor.stop()

    async def once(self) -> bool:
        """Make the next transition. False if there is none until something arrives."""
        await self.ports.outbox.flush()
        job = await asyncio.to_thread(
            self.store.current, self.binding.key, pending=self.executor.holds_while_pending
        )
        head = await asyncio.to_thread(self.store.head, self.binding.scenario)
        match job:
            case None:
                return await self._open(head)
            case Job(state="open"):
                await self._run(job, head)
            case Job(state="produced"):
                await self._store(job, head)
            case Job(state="stored"):
                await self._announced(job, head)
            case Job(state="conflicted"):
                return await self._meet_new_head(job, head)
            case Job(state="pending"):
                return await self._pass_by(job, head)
            case _:
                return self._wait("waiting for the verdict on its candidate")
        return True

    # ------------------------------------------------------------------ arrivals

    async def put(self, sample: SampleReady) -> None:
        """Keep a sample. Returns when it is on disk."""
        too_old = self.binding.refusal(sample, TOO_OLD, None, sample.at)
        await asyncio.to_thread(
            self.store.put,
            self.binding.key,
            sample,
            (too_old, topics.TRAINING),
            text_only=self.executor.text_only,
        )
        self.arrived.set()

    async def judge(self, job: Job, publication: Publication) -> None:
        """Apply the verdict on this job's candidate."""
        after = model.after_verdict(job, publication)
        if after is None or not await asyncio.to_thread(self.store.save, after, expected=job.state):
            return
        self._log("job_judged", after, outcome=after.state, reason=after.reason)
        metrics.JOBS.labels(self.binding.key, after.state).inc()

    # ------------------------------------------------------------------ samples -> job

    async def _open(self, head: Release | None) -> bool:
        if head is None:
            return self._wait("waiting for the scenario's first release")
        if (obstacle := self.executor.obstacle(head)) is not None:
            return self._wait(obstacle)
        key = self.binding.key
        waiting = await asyncio.to_thread(self.store.window, key, MAX_WAITING)
        metrics.WAITING.labels(key).set(len(waiting))
        if not waiting:
            return self._wait("waiting for samples")
        records = {record for sample in waiting for record in sample.record_ids}
        used = await asyncio.to_thread(self.store.used_records, key, records)
        choice = await self._admission.choose(waiting, used, head)
        if choice.refused:
            refusals, events = self._refusals(choice.refused)
            await asyncio.to_thread(self.store.refuse, key, refusals, events)
            await self.ports.outbox.flush()
        if not choice.batch:
            return bool(choice.refused) or self._wait("waiting for samples")
        job = await asyncio.to_thread(self._planned, head, choice.batch)
        await asyncio.to_thread(
            self.store.open, job, choice.batch, once_per_record=self.executor.once_per_record
        )
        self._log("job_opened", job, samples=len(choice.batch), base=job.base_release_id)
        return True

    def _planned(self, head: Release, batch: Sequence[SampleReady]) -> Job:
        plan = self.executor.plan(self.store.last(self.binding.key), head, batch)
        return model.open_job(
            self.binding,
            self.executor.kind,
            head,
            batch,
            step=self.store.next_step(self.binding.key),
            plan=plan,
            now=self.ports.clock(),
        )

    def _refusals(self, refused: Sequence[Refusal]) -> tuple[dict[str, str], Outgoing]:
        at, key = self.ports.clock(), self.binding.key
        for item in refused:
            # The part after a colon is free text, and would make a time series of its own.
            metrics.REFUSED.labels(key, item.reason.partition(":")[0]).inc()
            log.debug(
                "sample_refused", binding=key, sample=item.sample.event_id, reason=item.reason
            )
        reasons = {item.sample.event_id: item.reason for item in refused}
        events = [self.binding.refusal(item.sample, item.reason, item.lag, at) for item in refused]
        return reasons, [(event, topics.TRAINING) for event in events]

    # ------------------------------------------------------------------ job -> output

    async def _run(self, job: Job, head: Release | None) -> None:
        moved = head is not None and model.own_kind_moved(job, head, self.executor.kind)
        if moved and not await asyncio.to_thread(self.executor.has_run, job):
            # Another content of this kind serves now: staleness is decided anew.
            self._log("job_reopened", job, base=job.base_release_id)
            await asyncio.to_thread(self.store.reopen, job, {})
            return
        self.shown.doing = "training" if self.executor.kind == "lora" else "proposing"
        samples = await asyncio.to_thread(self.store.samples, job)
        began = time.monotonic()
        result = await self._steps.run(job, samples)
        metrics.DURATION_S.labels(job.binding, "step").observe(time.monotonic() - began)
        if isinstance(result, Refused):
            await self._refuse(job, samples, result)
            return
        produced = replace(
            job,
            state="produced",
            step=job.step if result.step is None else result.step,
            output=result.output,
            metrics=dict(result.metrics),
            proposes=not isinstance(result, Nothing),
            end=result.end if isinstance(result, Nothing) else "finished",
            summary=result.reason,
            finished_at=self.ports.clock(),
        )
        if produced.proposes:
            produced = replace(produced, candidate_id=ids.candidate_id(job.job_id))
        await asyncio.to_thread(self.store.save, produced, expected="open")

    async def _refuse(self, job: Job, samples: Sequence[SampleReady], refused: Refused) -> None:
        metrics.JOBS.labels(job.binding, "refused").inc()
        log.error(
            "job_refused",
            binding=job.binding,
            job=job.job_id,
            reason=refused.reason,
            samples=sorted(refused.culprits),
        )
        items = [
            Refusal(sample, refused.culprits[sample.event_id])
            for sample in samples
            if sample.event_id in refused.culprits
        ]
        await asyncio.to_thread(self.store.reopen, job, *self._refusals(items))

    # ------------------------------------------------------------------ output -> candidate

    async def _store(self, job: Job, head: Release | None) -> None:
        if not job.proposes:
            await self._end(job, job.end, job.summary)
            return
        if head is not None and self._may_move(job, head):
            job = model.on_head(job, head, self.executor.kind, again=job.attempt > 1)
        self.shown.doing = "storing the candidate"
        began = time.monotonic()
        async with self.ports.storing:
            try:
                content = await asyncio.to_thread(self._put, job)
            except Poison as error:
                await self._end(job, "refused", f"refused: {error}")
                return
            spent = time.monotonic() - began
            stored = replace(
                job,
                state="stored",
                content_id=content,
                metrics={**job.metrics, "duration/put_s": spent},
            )
            await asyncio.to_thread(
                self.store.save, stored, expected="produced", events=self._events(stored)
            )
        metrics.DURATION_S.labels(job.binding, "put").observe(spent)

    def _put(self, job: Job) -> str:
        with tempfile.TemporaryDirectory(prefix="reef-candidate-") as scratch:
            tree = self.executor.tree(job, Path(scratch))
            lineage = self.binding.lineage(job.job_id, job.sample_ids, job.step)
            manifest = describe(
                tree,
                self.executor.kind,
                base=job.base_content,
                metrics=dict(job.metrics),
                lineage=lineage,
            )
            return self.ports.artifacts.put(tree, manifest, job.scenario)

    def _events(self, job: Job) -> Outgoing:
        proposed = (model.candidate(self.binding, self.executor.kind, job), topics.CANDIDATES)
        if job.attempt > 1:  # the step was told with the first candidate
            return (proposed,)
        return (proposed, (model.step_completed(self.binding, job), topics.TRAINING))

    async def _announced(self, job: Job, head: Release | None) -> None:
        """The outbox was empty at the start of this turn, so the broker has the job's events."""
        announced = replace(job, state="announced")
        if await asyncio.to_thread(self.store.save, announced, expected="stored"):
            metrics.JOBS.labels(job.binding, "announced").inc()
            self._log("candidate_proposed", job, content=job.content_id)
        await self._ended_step(job, head)

    async def _end(self, job: Job, state: State, reason: str) -> None:
        """End a job that has no candidate."""
        ended = replace(job, state=state, candidate_id=None, summary=reason, reason=reason)
        told = (model.step_completed(self.binding, ended), topics.TRAINING)
        await asyncio.to_thread(
            self.store.save, ended, expected="produced", events=(told,) if job.attempt == 1 else ()
        )
        await self.ports.outbox.flush()
        metrics.JOBS.labels(job.binding, state).inc()
        self._log("job_ended", ended, outcome=state, reason=reason)
        await self._ended_step(ended, await asyncio.to_thread(self.store.head, job.scenario))

    async def _ended_step(self, job: Job, head: Release | None) -> None:
        self._show(job)
        await asyncio.to_thread(self.executor.tidy, head)

    # ------------------------------------------------------------------ other heads

    def _may_move(self, job: Job, head: Release) -> bool:
        """Return whether the output is as good on `head`: only other kinds have changed."""
        return (
            head.release_id != job.base_release_id
            and self.binding.on_stale != "refuse"
            and not model.own_kind_moved(job, head, self.executor.kind)
        )

    async def _meet_new_head(self, job: Job, head: Release | None) -> bool:
        """Propose again on the head that came first, as far as `on_stale` allows it."""
        if head is None or head.release_id == job.base_release_id:
            return self._wait("waiting for the head that its candidate conflicts with")
        policy, kind = self.binding.on_stale, self.executor.kind
        if policy == "refuse":
            return await self._abort(job, f"on_stale: refuse; {job.reason}")
        if job.attempt >= model.MAX_ATTEMPTS_ON_NEW_HEADS:
            return await self._abort(job, "lost the race for the head too often")
        again = replace(model.on_head(job, head, kind, again=True), reason="")
        same = not model.own_kind_moved(job, head, kind)
        if job.content_id is not None and (
            same or (policy == "reevaluate" and not self.executor.rebases)
        ):
            stored = replace(again, state="stored", finished_at=self.ports.clock())
            return await asyncio.to_thread(
                self.store.save, stored, expected="conflicted", events=self._events(stored)
            )
        if self.executor.rebases:
            return await asyncio.to_thread(
                self.store.save, replace(again, state="produced"), expected="conflicted"
            )
        return await self._abort(job, f"on_stale: merge, but {kind} has changed; {job.reason}")

    async def _pass_by(self, job: Job, head: Release | None) -> bool:
        moved = head is not None and head.release_id != job.base_release_id
        if head is None or not moved or head.candidate_id == job.candidate_id:
            return self._wait("waiting for a person to decide on its candidate")
        return await self._abort(
            job, f"the head moved to {head.release_id} while this waited for a person"
        )

    async def _abort(self, job: Job, reason: str) -> bool:
        aborted = replace(job, state="aborted", reason=reason)
        moved = await asyncio.to_thread(self.store.save, aborted, expected=job.state)
        self._log("job_aborted", job, reason=reason)
        return moved

    # ------------------------------------------------------------------ shown

    def facts(self) -> dict[str, object]:
        """Return the row of this binding in `/status`. Blocks on the job store."""
        key, shown = self.binding.key, self.shown
        return {
            "state": shown.doing,
            "step": shown.step,
            "samples": self.store.counts("samples", key),
            "jobs": self.store.counts("jobs", key),
            "refused": self.store.refusals(key),
            "last_metrics": shown.metrics,
            "failing": shown.failing,
            "last_error": shown.error,
            "last_error_at": shown.error_at,
        }

    def _show(self, job: Job) -> None:
        self.shown.step, self.shown.metrics = job.step, dict(job.metrics)
        for name, value in job.metrics.items():
            metrics.LAST.labels(job.binding, name).set(value)

    def _note(self, error: str) -> None:
        self.shown.error, self.shown.error_at = error, self.ports.clock()

    def _wait(self, doing: str) -> bool:
        self.shown.doing = doing
        return False

    @staticmethod
    def _log(event: str, job: Job, **facts: object) -> None:
        log.info(event, binding=job.binding, job=job.job_id, step=job.step, **facts)
