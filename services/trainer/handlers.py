"""What arrives at the trainer, and the ports that it needs."""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from reefcommon.events import Publication, Release, ReleasePublished, SampleReady
from services.trainer.domain import Binding, Job, Verdict, verdict_of

__all__ = [
    "Checkpoints",
    "Handlers",
    "Heads",
    "Inbox",
    "Jobs",
    "StepProcess",
    "StepReply",
    "StepRequest",
]


class Inbox(Protocol):
    """Samples that have arrived, durably. All calls are short transactions on the local disk."""

    def put(self, binding: str, sample: SampleReady) -> bool:
        """Keep a sample; False where it was there already."""

    def waiting(self, binding: str) -> list[SampleReady]:
        """What waits, oldest first."""

    def trained(self, binding: str, record_ids: Collection[str]) -> set[str]:
        """Which of these records are part of a job."""

    def refuse(
        self, binding: str, refusals: Sequence[tuple[str, str, int | None]], now: datetime
    ) -> None:
        """Settle samples: (sample id, reason, lag). A repeat has no further effect."""

    def untold(self, binding: str) -> list[tuple[SampleReady, str, int | None, datetime]]:
        """Refusals that the broker has not acknowledged yet."""

    def told(self, binding: str, sample_ids: Collection[str]) -> None:
        """The broker has these refusals."""


class Jobs(Protocol):
    """Jobs and their states, durably."""

    def open(self, job: Job, batch: Sequence[SampleReady]) -> None:
        """In one transaction: the job, and its samples and records taken by it. A repeat has no further effect."""

    def save(self, job: Job) -> None:
        """The job as it is now. COMPLETE settles its samples."""

    def reopen(self, job: Job) -> None:
        """In one transaction: forget a job that never ran, its samples wait again."""

    def unfinished(self, binding: str) -> Job | None:
        """The job that is RUNNING or at its CHECKPOINT."""

    def last(self, binding: str) -> Job | None:
        """The last COMPLETE job."""

    def named(self, job_ids: Collection[str]) -> list[Job]:
        """These jobs, oldest first."""

    def batch(self, job: Job) -> list[SampleReady]:
        """The samples of an unfinished job, in its order."""

    def judge(self, candidate_id: str, verdict: Verdict) -> None:
        """Keep the verdict on a candidate; unknown candidates are those of others."""


class Heads(Protocol):
    """What serves each scenario, as far as the release chain was read."""

    def advance(self, release: Release) -> None:
        """Keep a release where it is newer than what is kept."""

    def head(self, scenario: str) -> Release | None:
        """The newest release that is known."""


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One step, as directories of this machine. `adopt`: an adapter to take the policy from; "base": the base model."""

    job_id: str
    state: Path | None
    actor: Path | None
    adopt: str | None
    batch: tuple[SampleReady, ...]
    out: Path


@dataclass(frozen=True, slots=True)
class StepReply:
    """What one step did; its state lies in the request's `out`, the adapter in `out/adapter` where it proposes."""

    step: int
    proposes: bool
    metrics: Mapping[str, float]


class StepProcess(Protocol):
    """The process that holds the tensors of one binding."""

    async def step(self, request: StepRequest) -> StepReply:
        """Raises Poison where the batch can never be trained on, Transient where the process died or took too long."""

    async def stop(self) -> None:
        """End it; the next step starts a fresh one."""


class Checkpoints(Protocol):
    """States of finished steps on the local disk, by job."""

    def path(self, binding: str, job_id: str) -> Path:
        """Where the state of a job lies, or will."""

    def reply(self, binding: str, job_id: str) -> StepReply | None:
        """What the step said, where its state is complete."""

    def kept(self, binding: str) -> set[str]:
        """Jobs whose state is there."""

    def prune(self, binding: str, keep: Collection[str]) -> None:
        """Remove the states of this binding's other jobs, and what interrupted steps left."""


@dataclass(frozen=True, slots=True)
class Handlers:
    """The arrivals, in time order. Each returns when its effect is on disk; the offset is committed after that."""

    bindings: tuple[Binding, ...]
    inbox: Inbox
    jobs: Jobs
    heads: Heads
    wake: Callable[[str], None]
    """Tells a scenario's learning loops that something has changed."""

    async def on_sample(self, event: SampleReady) -> None:
        """Keep it for every recipe of its scenario."""
        for binding in self.bindings:
            if binding.scenario == event.scenario:
                await asyncio.to_thread(self.inbox.put, binding.key, event)
        self.wake(event.scenario)

    async def on_publication(self, event: Publication) -> None:
        """Keep the new head, then the verdict on a candidate of ours: a loop that sees the verdict sees the head that it made."""
        if all(binding.scenario != event.scenario for binding in self.bindings):
            return
        if isinstance(event, ReleasePublished):
            await asyncio.to_thread(self.heads.advance, event.release)
        if (judged := verdict_of(event)) is not None:
            await asyncio.to_thread(self.jobs.judge, *judged)
        self.wake(event.scenario)
