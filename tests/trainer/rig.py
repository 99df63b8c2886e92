"""The trainer on one directory, with a bus and an artifact store that can fail, and that can be killed at any effect."""

import json
import shutil
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from reefcommon.artifacts import MANIFEST_NAME, Manifest
from reefcommon.errors import Poison, Unavailable
from reefcommon.events import (
    CandidateProposed,
    Event,
    Release,
    ReleasePublished,
    ReleaseRejected,
    SampleRefused,
    StepCompleted,
)
from reefcommon.topics import Topic
from reefkit.artifacts.cache import FetchedTrees
from reefkit.jobs.context import Kit
from reefkit.jobs.host import build
from reefkit.jobs.outbox import Outbox
from reefkit.jobs.store import JobStore
from reefkit.recipe_binding import Binding
from reefkit.retry import RetryPolicy
from services.trainer.child import ChildProcess
from services.trainer.executor import WeightExecutor
from services.trainer.ports import StepProcess, StepReply, StepRequest
from services.trainer.states import SavedStates
from services.trainer.worker import Worker
from tests.fakes.leases import SoleHolder
from tests.trainer.counting import ADAPTER, CountingRecipe, Knobs

AT = datetime(2026, 1, 1, tzinfo=UTC)


class Killed(BaseException):
    """The process ends here."""


@dataclass
class Mortal:
    """Counts effects; at the `at`-th it is as if the process had been killed, before or after the effect. `killed_at`: its name."""

    at: int | None = None
    after: bool = False
    count: int = 0
    killed_at: str | None = None

    def effect(self, name: str, act: Any) -> Any:
        self.count += 1
        if self.count == self.at:
            self.killed_at = name
        if self.count == self.at and not self.after:
            raise Killed
        result = act()
        if self.count == self.at:
            raise Killed
        return result


@dataclass
class Bus:
    """EventPublisher that keeps what it acknowledged."""

    mortal: Mortal
    events: list[Event] = field(default_factory=list)
    away: bool = False

    async def publish(self, event: Event, topic: Topic, *, shard: str | None = None) -> None:
        if self.away:
            raise Unavailable("no broker")
        self.mortal.effect(f"publish {type(event).__name__}", lambda: self.events.append(event))

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def candidates(self) -> list[CandidateProposed]:
        return self.of(CandidateProposed)

    @property
    def steps(self) -> list[StepCompleted]:
        return self.of(StepCompleted)

    @property
    def refusals(self) -> list[SampleRefused]:
        return self.of(SampleRefused)


@dataclass
class Shelf:
    """ArtifactStore in a directory."""

    root: Path
    mortal: Mortal
    away: bool = False

    def put(self, tree: Path, manifest: Manifest, scenario: str) -> str:
        if self.away:
            raise Unavailable("the artifact store does not take it")
        self.mortal.effect("put", lambda: self._copy(tree, manifest))
        return manifest.content_id

    def _copy(self, tree: Path, manifest: Manifest) -> None:
        shutil.copytree(tree, self.root / manifest.content_id, dirs_exist_ok=True)
        (self.root / manifest.content_id / MANIFEST_NAME).write_text(manifest.model_dump_json())

    def get(self, content_id: str, scenario: str, destination: Path) -> Manifest:
        if not (self.root / content_id).is_dir():
            raise Poison(f"no content {content_id!r}")
        shutil.copytree(self.root / content_id, destination)
        return Manifest.model_validate_json((destination / MANIFEST_NAME).read_bytes())

    def trained_on(self, content_id: str) -> list[str]:
        return json.loads((self.root / content_id / ADAPTER).read_text())


class MortalStore(JobStore):
    """A job store whose writes are effects too."""

    def __init__(self, path: Path, mortal: Mortal) -> None:
        super().__init__(path)
        self.mortal = mortal

    def open(self, job, batch, **how):
        self.mortal.effect("open", lambda: JobStore.open(self, job, batch, **how))

    def save(self, job, **how):
        return self.mortal.effect(f"save {job.state}", lambda: JobStore.save(self, job, **how))

    def refuse(self, binding, refusals, events):
        self.mortal.effect("refuse", lambda: JobStore.refuse(self, binding, refusals, events))

    def acknowledge(self, number):
        self.mortal.effect("acknowledge", lambda: JobStore.acknowledge(self, number))


class InProcess:
    """StepProcess that runs the worker's own code in this process, which saves a second a start. `stepped`: the job of every step that ended."""

    def __init__(
        self, binding: Binding, model_path: Path, mortal: Mortal, stepped: list[str]
    ) -> None:
        self._binding, self._model_path, self._mortal, self._stepped = (
            binding,
            model_path,
            mortal,
            stepped,
        )
        self._worker = Worker(binding.recipe, model_path)

    async def step(self, request: StepRequest) -> StepReply:
        return self._mortal.effect("step", lambda: self._handle(request))

    def _handle(self, request: StepRequest) -> StepReply:
        reply = self._worker.handle(StepRequest.model_validate_json(request.model_dump_json()))
        self._stepped.append(request.job_id)
        return reply

    async def stop(self) -> None:
        self._worker = Worker(self._binding.recipe, self._model_path)


class Rig:
    """One trainer process; `restart` is the next one on the same disk, bus and store."""

    def __init__(
        self,
        home: Path,
        *,
        mortal: Mortal | None = None,
        attempts: int = 3,
        timeout_s: float | None = None,
        on_stale: str = "merge",
        **knobs: Any,
    ) -> None:
        self.home, self.knobs, self.on_stale = home, knobs, on_stale
        self.mortal = mortal or Mortal()
        self.stepped: list[str] = []
        (home / "model").mkdir(parents=True, exist_ok=True)
        self.bus, self.shelf = Bus(self.mortal), Shelf(home / "shelf", self.mortal)
        self.retry, self.timeout_s = RetryPolicy(0.01, 0.05, attempts), timeout_s
        self.now = AT
        self._begin()

    def _begin(self) -> None:
        self.store = MortalStore(self.home / "ledger.sqlite", self.mortal)
        self.states = SavedStates(self.home / "states")
        self.trees = FetchedTrees(self.home / "trees")
        outbox, clock = Outbox(self.store, self.bus, SoleHolder()), self._clock
        self.kit = Kit(self.home, self.store, self.shelf, self.trees, outbox, clock, self.retry)
        binding = Binding(
            "default", "tests.trainer.counting:CountingRecipe", CountingRecipe(Knobs(**self.knobs)),
            on_stale=self.on_stale,
        )  # fmt: skip
        self.handlers = build((binding,), self.kit, self._executor)
        (self.loop,) = self.handlers.loops
        self.key = binding.key

    def _executor(self, binding: Binding, kit: Kit) -> WeightExecutor:
        process = self._process(binding)
        return WeightExecutor(binding, kit, self.states, process, kept_states=2)

    def _process(self, binding: Binding) -> StepProcess:
        if self.timeout_s is None:
            return InProcess(binding, self.home / "model", self.mortal, self.stepped)
        return ChildProcess(
            binding,
            self.home / "model",
            self.home / "child.log",
            timeout_s=self.timeout_s,
            niceness=0,
        )

    def _clock(self) -> datetime:
        self.now += timedelta(seconds=1)
        return self.now

    async def restart(self) -> None:
        """As after kill -9: whatever was not on disk is gone."""
        await self.stop()
        self._begin()

    async def stop(self) -> None:
        await self.loop.executor.stop()
        self.store.close()

    async def settle(self) -> None:
        """Run until nothing can be done."""
        while await self.loop.once():
            pass

    async def publish(
        self,
        sequence: int,
        content: str = "base",
        *,
        candidate: str | None = None,
        incarnation: str = "run",
    ) -> None:
        """The head moves."""
        await self.handlers.on_publication(
            ReleasePublished(
                event_id=f"r{sequence}",
                at=AT,
                scenario="default",
                release=release(sequence, content, candidate, incarnation),
            )
        )

    async def reject(self, candidate: str, outcome: str = "rejected") -> None:
        await self.handlers.on_publication(
            ReleaseRejected(
                event_id=f"rej-{candidate}",
                at=AT,
                scenario="default",
                outcome=outcome,
                reason="worse",
                candidate_id=candidate,
            )
        )


def release(
    sequence: int, content: str = "base", candidate: str | None = None, incarnation: str = "run"
) -> Release:
    """The release of this sequence; its load has the same one."""
    return Release(
        release_id=f"r{sequence}",
        scenario="default",
        sequence=sequence,
        parent_id=None,
        kind="base" if content == "base" else "lora",
        content_id=content,
        contents={} if content == "base" else {"lora": content},
        operation="training",
        load_id=f"{incarnation}:{sequence}",
        candidate_id=candidate,
        created_at=AT,
    )
