"""A `SeekContext` in memory: what is durable outlives a kill, the rest does not."""

import asyncio
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reefcommon.events import Release, Sampling
from reefcommon.ids import LoadId, digest
from reefcommon.recipe import WeightRecipe
from reefcommon.recipe_context import Asked, Learned, Limits, Model, Outcome
from tests.recipes.samples import sample

AT = datetime(2026, 1, 1, tzinfo=UTC)


class Killed(BaseException):
    """The process died."""


@dataclass(frozen=True)
class Answer:
    """An answer with what its unit will hold of it."""

    text: str
    unit: dict[str, Any] = field(default_factory=lambda: {"sampling": (Sampling(),)})


@dataclass
class World:
    """All that a kill leaves: gateway, log, trainer, chain, and the seeker's committed state."""

    recipe: WeightRecipe
    policy: Callable[[str, int], str | Answer] | None = None
    """(prompt, seed) -> answer"""
    scenario: str = "packing"
    load: int = 0
    first_release: int = 0
    committed: dict[str, Any] = field(default_factory=dict)
    asked: dict[str, Asked] = field(default_factory=dict)
    answers: dict[str, Answer] = field(default_factory=dict)
    requests: list[dict[str, Any]] = field(default_factory=list)
    reports: dict[str, Any] = field(default_factory=dict)
    waiting: list[Any] = field(default_factory=list)
    ended: dict[str, Learned] = field(default_factory=dict)
    trained: list[tuple[Any, ...]] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)
    solutions: dict[str, dict[str, Any]] = field(default_factory=dict)
    train: Callable[[Sequence[Any]], None] | None = None
    load_of: Callable[[str, int], int] = lambda key, load: load

    def decide(self) -> None:
        """The trainer: take the batch that the recipe decides on, publish the next weights."""
        decision = self.recipe.decide(list(self.waiting), LoadId("run", self.load))
        for unit, reason, _ in decision.refused:
            self.refused.append((unit.event_id, reason))
            self.ended[unit.record_ids[0]] = "refused"
        if decision.batch:
            if self.train is not None:
                self.train(decision.batch)
            self.trained.append(decision.batch)
            self.ended |= {unit.record_ids[0]: "published" for unit in decision.batch}
            self.load += 1
        self.waiting = [unit for unit in self.waiting if unit.record_ids[0] not in self.ended]


class Store:
    def __init__(self, committed: dict[str, Any]) -> None:
        self.staged = deepcopy(committed)

    def get(self, key: str, default: Any = None) -> Any:
        return deepcopy(self.staged.get(key, default))

    def put(self, key: str, value: Any) -> None:
        self.staged[key] = json.loads(json.dumps(value))

    def blob(self, key: str) -> bytes | None:
        return self.staged.get(key)

    def put_blob(self, key: str, value: bytes) -> None:
        self.staged[key] = value

    def drop(self, key: str) -> None:
        self.staged.pop(key, None)

    def keys(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.staged if key.startswith(prefix))


class FakeSeekContext:
    """Dies at effect number `kill_at`: before it is done if that is even, after it if odd."""

    models: Mapping[str, Model] = {}

    def __init__(self, world: World, kill_at: int | None = None) -> None:
        self.slept = 0
        self.world, self.kill_at, self.moments = world, kill_at, 0
        self.store = Store(world.committed)

    @property
    def scenario(self) -> str:
        return self.world.scenario

    @property
    def head(self) -> Release | None:
        """The first release appears while the seeker sleeps `world.first_release` times."""
        if self.slept < self.world.first_release:
            return None
        return Release(
            release_id=f"r{self.world.load}", scenario=self.scenario, sequence=self.world.load,
            kind="lora", content_id="c", operation="training", load_id=f"run:{self.world.load}",
            created_at=AT,
        )  # fmt: skip

    def now(self) -> datetime:
        return AT

    def _moment(self) -> None:
        if self.kill_at is not None and self.moments >= self.kill_at:
            raise Killed
        self.moments += 1

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        key: str,
        tags: Mapping[str, str],
        **params: Any,
    ) -> Asked:
        self._moment()
        world = self.world
        if key not in world.asked:
            prompt = messages[-1]["content"]
            answer = await self._answer(prompt, params["seed"])
            load = world.load_of(key, world.load)
            world.requests.append({"key": key, "tags": dict(tags), "prompt": prompt, **params})
            receipt = f"rec-{digest(world.scenario, key)}"
            world.asked[key] = Asked(receipt, answer.text, {}, "stop", f"r{load}", f"run:{load}")
            world.answers[receipt] = answer
        self._moment()
        return world.asked[key]

    async def _answer(self, prompt: str, seed: int) -> Answer:
        answer = self.world.policy(prompt, seed)
        return Answer(answer) if isinstance(answer, str) else answer

    async def report(
        self,
        receipt: str,
        score: float,
        *,
        feedback: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        self._moment()
        world = self.world
        if receipt not in world.reports:
            world.reports[receipt] = (score, dict(metadata or {}))
            asked = next(asked for asked in world.asked.values() if asked.receipt == receipt)
            fields = {
                "event_id": f"smp-{receipt}",
                "record_ids": (receipt,),
                "load_id": asked.load_id,
                "score": score,
                "metadata": dict(metadata or {}),
            }
            world.waiting.append(sample(**(fields | world.answers[receipt].unit)))
        self._moment()

    async def learned(self, receipts: Sequence[str]) -> Learned:
        self._moment()
        self.world.decide()
        self._moment()
        ends = {self.world.ended[receipt] for receipt in receipts}
        assert len(ends) == 1, "a grid is one batch, or is refused whole"
        return ends.pop()

    async def publish(
        self, kind: str, directory: Path, *, metrics: Mapping[str, float], reason: str
    ) -> str:
        self._moment()
        files = {path.name: path.read_bytes() for path in sorted(directory.iterdir())}
        name = digest(kind, {k: hashlib.sha256(v).hexdigest() for k, v in files.items()})
        self.world.solutions[name] = {
            "kind": kind, "files": files, "metrics": dict(metrics), "reason": reason
        }  # fmt: skip
        self._moment()
        return name

    async def commit(self) -> None:
        self._moment()
        self.world.committed = deepcopy(self.store.staged)
        self._moment()

    async def sleep_until(self, when: datetime) -> None:
        assert when > AT
        assert not self.world.asked
        self.slept += 1

    async def run(
        self,
        program: str,
        *,
        stdin: str = "",
        files: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> Outcome:
        """A plain process: the sandbox has tests of its own."""
        limits = limits or Limits()
        with tempfile.TemporaryDirectory() as directory:
            for name, text in (files or {}).items():
                (Path(directory) / name).write_text(text)
            child = await asyncio.create_subprocess_exec(
                sys.executable, "-c", program, cwd=directory, stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            try:
                out, err = await asyncio.wait_for(child.communicate(stdin.encode()), limits.wall_s)
            except TimeoutError:
                child.kill()
                await child.wait()
                return Outcome("timeout")
        if len(out) > limits.output_kb * 1024:
            return Outcome("output")
        status = "ok" if child.returncode == 0 else "failed"
        return Outcome(status, child.returncode, out.decode(), err.decode())
