"""The loop of one binding: waiting samples -> job -> step -> candidate -> verdict -> the next.

Every transition is on disk before the next begins, so that the loop can be killed at any line and goes on from there.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

import structlog

from reefcommon import topics
from reefcommon.artifacts import BASE_CONTENT_ID, ArtifactStore, describe
from reefcommon.errors import Poison, Transient, Unavailable
from reefcommon.events import Release, SampleReady
from reefcommon.recipe import Decision
from reefcommon.releases import base_weights
from reefkit.artifacts.cache import FetchedTrees
from reefkit.bus import EventPublisher
from services.trainer import domain, metrics
from services.trainer.domain import Binding, Job
from services.trainer.filesystem import ADAPTER
from services.trainer.handlers import (
    Checkpoints,
    Heads,
    Inbox,
    Jobs,
    StepProcess,
    StepReply,
    StepRequest,
)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Patience:
    """How failures are tried again."""

    first_delay_s: float
    max_delay_s: float
    max_attempts: int


@dataclass(frozen=True, slots=True)
class Ports:
    """What the loop needs from outside."""

    inbox: Inbox
    jobs: Jobs
    heads: Heads
    checkpoints: Checkpoints
    artifacts: ArtifactStore
    publisher: EventPublisher
    clock: Callable[[], datetime]
    adapters: FetchedTrees
    """Where published adapters are fetched to, when the actor has to start from one without a saved state."""
    kept_states: int
    storing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """See `reefkit.rejected_contents.Rejected`."""


@dataclass(slots=True)
class Learning:
    """One recipe learning from one scenario."""

    binding: Binding
    ports: Ports
    process: StepProcess
    patience: Patience
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    doing: str = "starting"
    step: int = 0
    last_metrics: dict[str, float] = field(default_factory=dict)
    last_error: str | None = None
    last_error_at: datetime | None = None
    failing: str | None = None
    _attempts: int = 0

    async def run(self) -> None:
        """For ever. Cancelled to stop; the step process is ended then."""
        failures = 0
        try:
            while True:
                self.arrived.clear()
                try:
                    progressed = await self.once()
                except Transient as error:
                    failures += 1
                    self.failing = str(error)
                    self._note(self.failing)
                    log.warning(
                        "learning_interrupted",
                        binding=self.binding.key,
                        attempt=failures,
                        reason=str(error),
                    )
                    await asyncio.sleep(
                        min(
                            self.patience.first_delay_s * 2 ** (failures - 1),
                            self.patience.max_delay_s,
                        )
                    )
                    continue
                failures, self.failing = 0, None
                if not progressed:
                    await self.arrived.wait()
        finally:
            await self.process.stop()

    async def once(self) -> bool:
        """The next transition, whatever it is; False where nothing can be done until something arrives."""
        ports, key = self.ports, self.binding.key
        await self._tell_refusals()
        if (job := await asyncio.to_thread(ports.jobs.unfinished, key)) is not None:
            await self._advance(job)
            return True
        last = await asyncio.to_thread(ports.jobs.last, key)
        if last is not None and last.awaits_verdict:
            return self._wait("waiting for the verdict on its candidate")
        head = await asyncio.to_thread(ports.heads.head, self.binding.scenario)
        if head is None:
            return self._wait("waiting for the scenario's first release")
        if (base := base_weights(head)) != BASE_CONTENT_ID:
            return self._wait(
                f"waiting: {base} serves, and an adapter of the base model would be trained for other weights; roll back to go on"
            )
        return await self._open(last, head)

    # ------------------------------------------------------------------ samples -> job

    async def _open(self, last: Job | None, head: Release) -> bool:
        """Let the recipe decide; refuse what it refuses, and open a job where it has a batch."""
        ports, key = self.ports, self.binding.key
        waiting = await asyncio.to_thread(ports.inbox.waiting, key)
        metrics.WAITING.labels(key).set(len(waiting))
        records = {record for sample in waiting for record in sample.record_ids}
        trained = await asyncio.to_thread(ports.inbox.trained, key, records)
        decision = self._decide(waiting, trained, head)
        if decision.refused:
            refusals = [(sample.event_id, reason, lag) for sample, reason, lag in decision.refused]
            await asyncio.to_thread(ports.inbox.refuse, key, refusals, ports.clock())
            await self._tell_refusals()
        if not decision.batch:
            return bool(decision.refused) or self._wait("waiting for samples")
        start = await asyncio.to_thread(self._start, last, head)
        job = domain.open_job(self.binding, head, decision.batch, start, ports.clock())
        await asyncio.to_thread(ports.jobs.open, job, decision.batch)
        log.info(
            "job_opened",
            binding=key,
            job=job.job_id,
            samples=len(decision.batch),
            base=job.base_release_id,
        )
        return True

    def _decide(self, waiting: list[SampleReady], trained: set[str], head: Release) -> Decision:
        """What the recipe makes of what waits. Raises Transient where it fails: that stops its own learning, until it works again."""
        try:
            return domain.choose(self.binding, waiting, trained, head)
        except Exception as error:  # the recipe is somebody's own code
            raise Transient(
                f"{self.binding.dotted} cannot decide: {type(error).__name__}: {error}"
            ) from error

    def _start(self, last: Job | None, head: Release) -> domain.Start:
        kept = self.ports.checkpoints.kept(self.binding.key)
        if last is not None and last.job_id not in kept:
            log.warning(
                "state_lost",
                binding=self.binding.key,
                job=last.job_id,
                consequence="the critic starts anew",
            )
            last = None
        saved = {
            job.content_id: job.job_id
            for job in self.ports.jobs.named(kept)
            if job.state == "complete" and job.content_id
        }
        return domain.plan_start(last, domain.weights_content(head), saved)

    async def _tell_refusals(self) -> None:
        ports, key = self.ports, self.binding.key
        for sample, reason, lag, at in await asyncio.to_thread(ports.inbox.untold, key):
            await ports.publisher.publish(
                self.binding.refusal(sample, reason, lag, at), topics.TRAINING
            )
            await asyncio.to_thread(ports.inbox.told, key, [sample.event_id])
            metrics.REFUSED.labels(
                key, reason.partition(":")[0]
            ).inc()  # what follows the colon is free text
            log.debug("sample_refused", binding=key, sample=sample.event_id, reason=reason, lag=lag)

    # ------------------------------------------------------------------ job -> candidate

    async def _advance(self, job: Job) -> None:
        """One transition of an unfinished job."""
        if job.state == "running":
            await self._run_step(job)
        elif job.proposes and job.content_id is None:
            await self._store(job)
        else:
            await self._announce(job)

    async def _run_step(self, job: Job) -> None:
        """RUNNING -> CHECKPOINT, or FAILED, or back to waiting where another release serves now and the step never ran."""
        ports = self.ports
        reply = await asyncio.to_thread(ports.checkpoints.reply, job.binding, job.job_id)
        began = time.monotonic()
        if reply is None:
            head = await asyncio.to_thread(ports.heads.head, job.scenario)
            if head is not None and head.release_id != job.base_release_id:
                log.info(
                    "job_reopened",
                    binding=job.binding,
                    job=job.job_id,
                    reason="another release serves now: staleness is decided anew",
                )
                await asyncio.to_thread(ports.jobs.reopen, job)
                return
            self.doing = "training"
            reply = await self._step(job)
        if reply is None:
            return
        spent = time.monotonic() - began
        metrics.DURATION_S.labels(job.binding, "step").observe(spent)
        figures = {**job.facts, **reply.metrics, "duration/step_s": spent}
        await asyncio.to_thread(
            ports.jobs.save,
            replace(
                job,
                state="checkpoint",
                step=reply.step,
                proposes=reply.proposes,
                metrics=figures,
                finished_at=ports.clock(),
            ),
        )

    async def _step(self, job: Job) -> StepReply | None:
        """Ask the step process; None where the job has failed for good."""
        try:
            reply = await self.process.step(await self._request(job))
        except Poison as error:
            await self._fail(job, f"refused by the learner: {error}")
            return None
        except Unavailable:
            raise
        except Transient as error:
            self._attempts += 1
            metrics.STEPS.labels(job.binding, "interrupted").inc()
            if self._attempts < self.patience.max_attempts:
                raise
            await self._fail(job, f"the step failed {self._attempts} times; last: {error}")
            return None
        self._attempts = 0
        return reply

    async def _request(self, job: Job) -> StepRequest:
        ports, start = self.ports, job.start
        adopt = start.adopt
        if adopt is not None and adopt != BASE_CONTENT_ID:
            adopt = str(
                await asyncio.to_thread(ports.adapters.fetch, ports.artifacts, adopt, job.scenario)
            )
        return StepRequest(
            job_id=job.job_id,
            state=ports.checkpoints.path(job.binding, start.state) if start.state else None,
            actor=ports.checkpoints.path(job.binding, start.actor) if start.actor else None,
            adopt=adopt,
            batch=tuple(await asyncio.to_thread(ports.jobs.batch, job)),
            out=ports.checkpoints.path(job.binding, job.job_id),
        )

    async def _fail(self, job: Job, reason: str) -> None:
        self._attempts = 0
        self._note(reason)
        metrics.STEPS.labels(job.binding, "failed").inc()
        log.error("job_failed", binding=job.binding, job=job.job_id, reason=reason)
        failed = replace(job, state="failed", reason=reason, finished_at=self.ports.clock())
        await asyncio.to_thread(self.ports.jobs.save, failed)

    async def _store(self, job: Job) -> None:
        """The adapter goes into the artifact store; until it is there, nothing is said of it."""
        ports = self.ports
        self.doing = "storing the candidate"
        began = time.monotonic()
        async with ports.storing:
            content = await asyncio.to_thread(self._put, job)
            spent = time.monotonic() - began
            figures = {**job.metrics, "duration/put_s": spent}
            await asyncio.to_thread(
                ports.jobs.save, replace(job, content_id=content, metrics=figures)
            )
        metrics.DURATION_S.labels(job.binding, "put").observe(spent)

    def _put(self, job: Job) -> str:
        tree = self.ports.checkpoints.path(job.binding, job.job_id) / ADAPTER
        lineage = self.binding.lineage(job.job_id, job.sample_ids, job.step)
        manifest = describe(
            tree, "lora", base=job.base_content, metrics=dict(job.metrics), lineage=lineage
        )
        return self.ports.artifacts.put(tree, manifest, job.scenario)

    async def _announce(self, job: Job) -> None:
        """CHECKPOINT -> COMPLETE, once the broker has both events."""
        ports = self.ports
        if (candidate := domain.proposed(self.binding, job)) is not None:
            await ports.publisher.publish(candidate, topics.CANDIDATES)
        await ports.publisher.publish(domain.completed(self.binding, job), topics.TRAINING)
        await asyncio.to_thread(ports.jobs.save, replace(job, state="complete"))
        self._tell_step(job)
        head = await asyncio.to_thread(ports.heads.head, job.scenario)
        await asyncio.to_thread(
            self._prune, domain.weights_content(head) if head else BASE_CONTENT_ID
        )

    def _prune(self, head_content: str) -> None:
        ports, key = self.ports, self.binding.key
        kept = ports.checkpoints.kept(key)
        keep = domain.states_to_keep(ports.jobs.named(kept), head_content, ports.kept_states)
        ports.checkpoints.prune(key, keep)

    def _tell_step(self, job: Job) -> None:
        self.show(job)
        metrics.STEPS.labels(job.binding, "complete").inc()
        log.info(
            "step_completed",
            binding=job.binding,
            job=job.job_id,
            step=job.step,
            candidate=job.candidate_id,
            **_brief(job.metrics),
        )

    def show(self, job: Job) -> None:
        """This is the last finished step: after a restart too."""
        self.step, self.last_metrics = job.step, dict(job.metrics)
        for name, value in job.metrics.items():
            metrics.LAST.labels(job.binding, name).set(value)

    def _note(self, error: str) -> None:
        self.last_error, self.last_error_at = error, self.ports.clock()

    def _wait(self, what: str) -> bool:
        self.doing = what
        return False


def _brief(figures: Mapping[str, float]) -> dict[str, float]:
    shown = ("reward_mean", "lag_max", "pg_clipfrac", "train_rollout_logprob_abs_diff")
    return {name: round(figures[name], 5) for name in shown if name in figures}
