"""What arrives at the harness service, in the order of time: samples, publications, and the turns in which a job goes forward.

Arrivals only write the ledger, so that an offset is committed as soon as the event is on the disk. `advance` does the work, one durable
transition at a time; killed anywhere, it goes on from the last one, and what it repeats (a stored tree, a sent event) has the same id.
"""

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

import structlog
from prometheus_client import Counter

from reefcommon import events, ids, topics
from reefcommon.artifacts import ArtifactStore, describe
from reefcommon.errors import Poison
from reefcommon.events import Event, Publication, Release, ReleasePublished, SampleReady
from reefcommon.harness.admission import Adapter, admit
from reefcommon.harness.files import read_tree, write_tree
from reefcommon.harness.tree import Inadmissible, Mutation, Rejection, Tree
from reefcommon.recipe import Decision
from reefcommon.topics import Topic
from reefkit.artifacts.cache import FetchedTrees
from reefkit.bus import EventPublisher
from reefkit.retention import TOO_OLD
from services.harness import domain
from services.harness.domain import Binding, Job, State

log = structlog.get_logger()

MAX_WAITING = 10_000
STEPS = Counter(
    "reef_harness_steps_total",
    "windows of a harness recipe, by what became of them",
    ["binding", "outcome"],
)
REFUSED = Counter(
    "reef_harness_samples_refused_total",
    "samples that a harness recipe will never use",
    ["binding"],
)

_EVENT_TYPES = {cls.__name__: cls for cls in events.ALL}
_TOPICS = {topic.name: topic for topic in topics.ALL}
_Outgoing = Sequence[tuple[Event, Topic]]


class Inbox(Protocol):
    """Samples by binding: waiting, used or refused. Calls block and are durable; each raises Unavailable where the disk refuses."""

    def add_sample(
        self,
        bindings: Sequence[str],
        sample: SampleReady,
        too_old: Mapping[str, tuple[Event, Topic]] | None = None,
    ) -> int: ...
    def waiting(self, binding: str, limit: int) -> list[SampleReady]: ...
    def samples_of(self, job_id: str) -> list[SampleReady]: ...
    def refuse(
        self, binding: str, refusals: Sequence[tuple[str, str]], events: _Outgoing
    ) -> None: ...


class Jobs(Protocol):
    """Jobs and their transitions; a transition and its events are one write."""

    def current(self, binding: str) -> Job | None: ...
    def last_step(self, binding: str) -> int: ...
    def start(self, job: Job) -> None: ...
    def save(self, job: Job, *, expected: State, events: _Outgoing = ()) -> bool: ...
    def supersede(self, old: Job, new: Job, *, expected: State) -> bool: ...
    def of_candidate(self, candidate_id: str) -> Job | None: ...
    def rejected(self, binding: str) -> list[Rejection]: ...


class Heads(Protocol):
    """The newest release of every scenario, as read from the log."""

    def put_head(self, release: Release) -> None: ...
    def head(self, scenario: str) -> Release | None: ...


class Outbox(Protocol):
    """Events that were written with their effect and wait for the broker's acknowledgement."""

    def unsent(self, limit: int) -> list[tuple[int, str, str, str]]: ...
    def sent(self, number: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Handlers:
    """All arrivals. `trees`: the trees that jobs start from, on this disk; `wake` tells the worker that there may be something to do."""

    bindings: tuple[Binding, ...]
    inbox: Inbox
    jobs: Jobs
    heads: Heads
    outbox: Outbox
    artifacts: ArtifactStore
    publisher: EventPublisher
    adapter: Adapter
    trees: FetchedTrees
    clock: Callable[[], datetime]
    wake: Callable[[], None]
    storing: asyncio.Lock
    """See `reefkit.rejected_contents.Rejected`."""

    async def on_sample(self, sample: SampleReady) -> None:
        """Keep a sample for every recipe of its scenario. One that cannot train is as good as any: only its text is read."""
        mine = [binding for binding in self.bindings if binding.scenario == sample.scenario]
        if not mine:
            return
        too_old = {
            b.key: (b.refusal(sample, TOO_OLD, None, sample.at), topics.TRAINING) for b in mine
        }
        if await asyncio.to_thread(self.inbox.add_sample, list(too_old), sample, too_old) > 0:
            self.wake()

    async def on_publication(self, publication: Publication) -> None:
        """Learn the new head, and the verdict on a candidate of ours."""
        if isinstance(publication, ReleasePublished):
            await asyncio.to_thread(self.heads.put_head, publication.release)
        candidate = domain.candidate_in(publication)
        job = await asyncio.to_thread(self.jobs.of_candidate, candidate) if candidate else None
        if job is not None:
            await self._settle(job, publication)
        self.wake()

    async def _settle(self, job: Job, publication: Publication) -> None:
        settled = domain.settled(job, publication)
        if settled is None:
            return
        moved = await asyncio.to_thread(self.jobs.save, settled, expected=job.state)
        if moved:
            STEPS.labels(job.binding, settled.state).inc()
            log.info(
                "harness_verdict",
                binding=job.binding,
                job=job.job_id,
                step=job.step,
                outcome=settled.state,
                reason=settled.reason,
            )

    async def flush(self) -> None:
        """Send what waits in the outbox, in order."""
        while rows := await asyncio.to_thread(self.outbox.unsent, 100):
            for number, topic, type_name, body in rows:
                event = _EVENT_TYPES[type_name].model_validate_json(body)
                await self.publisher.publish(event, _TOPICS[topic])
                await asyncio.to_thread(self.outbox.sent, number)

    async def advance(self, binding: Binding) -> bool:
        """Take the current job of a binding one transition further, or open one. False: there is nothing to do until something arrives."""
        await self.flush()
        job = await asyncio.to_thread(self.jobs.current, binding.key)
        match job:
            case None:
                return await self._open(binding)
            case Job(state="open"):
                await self._propose(binding, job)
            case Job(state="proposed"):
                await self._submit(binding, job)
            case Job(state="pending" | "conflicted"):
                return await self._meet_new_head(binding, job)
            case _:
                return False
        await self.flush()
        return True

    async def give_up(self, binding: Binding, reason: str) -> None:
        """Close the current job, which fails whenever it is tried."""
        job = await asyncio.to_thread(self.jobs.current, binding.key)
        if job is not None and job.state in ("open", "proposed"):
            await self._close(binding, job, "failed", reason)

    async def _open(self, binding: Binding) -> bool:
        head = await asyncio.to_thread(self.heads.head, binding.scenario)
        waiting = await asyncio.to_thread(self.inbox.waiting, binding.key, MAX_WAITING)
        if head is None or not waiting:
            return False
        decision = await asyncio.to_thread(binding.recipe.decide, waiting)
        if {sample.event_id for sample in decision.batch} - {sample.event_id for sample in waiting}:
            raise Poison(f"{binding.dotted} decided to use a sample that does not wait for it")
        if decision.refused:
            await self._refuse(binding, decision)
        if not decision.batch:
            return bool(decision.refused)
        step = await asyncio.to_thread(self.jobs.last_step, binding.key) + 1
        job = domain.open_job(binding, head, decision.batch, step, self.clock())
        await asyncio.to_thread(self.jobs.start, job)
        log.info(
            "harness_step_opened",
            binding=binding.key,
            job=job.job_id,
            step=step,
            samples=len(job.sample_ids),
            base=head.release_id,
        )
        return True

    async def _refuse(self, binding: Binding, decision: Decision) -> None:
        at = self.clock()
        refusals = [(sample.event_id, reason) for sample, reason, _ in decision.refused]
        outgoing = [
            (binding.refusal(sample, why, lag, at), topics.TRAINING)
            for sample, why, lag in decision.refused
        ]
        await asyncio.to_thread(self.inbox.refuse, binding.key, refusals, outgoing)
        REFUSED.labels(binding.key).inc(len(refusals))
        await self.flush()

    async def _propose(self, binding: Binding, job: Job) -> None:
        tree = await self._base_tree(job)
        samples = await asyncio.to_thread(self.inbox.samples_of, job.job_id)
        rejected = await asyncio.to_thread(self.jobs.rejected, binding.key)
        mutations = tuple(await asyncio.to_thread(binding.recipe.propose, tree, samples, rejected))
        if not all(isinstance(mutation, Mutation) for mutation in mutations):
            raise Poison(f"{binding.dotted} proposed something that is not a Mutation")
        if mutations:
            # Kept before anything is done with it: a recipe that asks a model would answer otherwise the second time.
            await asyncio.to_thread(
                self.jobs.save, replace(job, state="proposed", mutations=mutations), expected="open"
            )
        else:
            await self._close(binding, job, "empty", "the recipe proposes nothing")

    async def _submit(self, binding: Binding, job: Job) -> None:
        base = await self._base_tree(job)
        try:
            tree = await asyncio.to_thread(admit, base, job.mutations, self.adapter)
        except Inadmissible as error:
            await self._close(binding, job, "refused", str(error))
            return
        samples = await asyncio.to_thread(self.inbox.samples_of, job.job_id)
        async with self.storing:
            content = await asyncio.to_thread(self._store, binding, job, tree)
            await self._await_verdict(binding, job, samples, content, tree)

    async def _await_verdict(
        self, binding: Binding, job: Job, samples: Sequence[SampleReady], content: str, tree: Tree
    ) -> None:
        awaiting = replace(
            job, state="awaiting", content_id=content, candidate_id=ids.candidate_id(job.job_id)
        )
        at, trace = self.clock(), samples[-1].traceparent if samples else ""
        outgoing = (
            (
                domain.candidate(binding, awaiting, tree, at=at, traceparent=trace),
                topics.CANDIDATES,
            ),
            (
                domain.step_completed(awaiting, binding.recipe, at=at, traceparent=trace),
                topics.TRAINING,
            ),
        )
        await asyncio.to_thread(self.jobs.save, awaiting, expected="proposed", events=outgoing)
        STEPS.labels(binding.key, "proposed").inc()
        log.info(
            "harness_candidate_proposed",
            binding=binding.key,
            job=job.job_id,
            step=job.step,
            content=content,
        )

    async def _meet_new_head(self, binding: Binding, job: Job) -> bool:
        head = await asyncio.to_thread(self.heads.head, binding.scenario)
        if (
            head is None
            or head.release_id == job.base_release_id
            or head.candidate_id == job.candidate_id
        ):
            return False
        if job.state == "pending":
            closed = replace(
                job,
                state="superseded",
                reason=f"the head moved to {head.release_id} while this waited for a person",
            )
            return await asyncio.to_thread(self.jobs.save, closed, expected="pending")
        again = domain.on_new_head(job, head)
        if again is None:
            lost = replace(job, state="failed", reason="lost the race for the head too often")
            return await asyncio.to_thread(self.jobs.save, lost, expected="conflicted")
        return await asyncio.to_thread(self.jobs.supersede, job, again, expected="conflicted")

    async def _close(self, binding: Binding, job: Job, state: State, reason: str) -> None:
        closed = replace(job, state=state, reason=reason)
        event = domain.step_completed(closed, binding.recipe, at=self.clock())
        await asyncio.to_thread(
            self.jobs.save, closed, expected=job.state, events=((event, topics.TRAINING),)
        )
        STEPS.labels(binding.key, state).inc()
        log.info(
            "harness_step_closed",
            binding=binding.key,
            job=job.job_id,
            step=job.step,
            outcome=state,
            reason=reason,
        )

    async def _base_tree(self, job: Job) -> Tree:
        if job.base_content is None:
            return ()
        directory = await asyncio.to_thread(
            self.trees.fetch, self.artifacts, job.base_content, job.scenario
        )
        return await asyncio.to_thread(read_tree, directory)

    def _store(self, binding: Binding, job: Job, tree: Tree) -> str:
        self.trees.root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.trees.root, prefix=".candidate-") as name:
            directory = Path(name)
            write_tree(tree, directory)
            manifest = describe(
                directory,
                "harness",
                base=job.base_content or "",
                lineage=binding.lineage(job.job_id, job.sample_ids, job.step),
            )
            return self.artifacts.put(directory, manifest, job.scenario)
