"""An evaluator on a real Valkey, with a node whose answers and failures are the test's."""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis.asyncio import Redis

from reefcommon.config import parse
from reefcommon.errors import Poison, Unavailable
from reefcommon.events import (
    CandidateEvaluated,
    CandidateProposed,
    Evaluation,
    Kind,
    Lineage,
    Release,
    SampleReady,
    utc_now,
)
from reefcommon.ids import digest
from reefcommon.releases import GROUPS
from reefcommon.serving import Answer, NodeWeights
from reefcommon.settings import SystemSettings
from reefkit.outside import Outside
from reefkit.redis_heads import RedisReleaseHeads, connect
from services.evaluator.app import build
from services.evaluator.handlers import Handlers
from services.evaluator.plans import Plans
from services.evaluator.settings import Settings
from services.evaluator.trials import WaitingCandidate
from tests.episodes.conftest import scripted_model  # noqa: F401  a fixture, called model
from tests.publisher.fakes import FakeEvents, FakeStore, content

SAO = "recipes.sao.recipe:SAORecipe"
TASKS = (
    "reef: {recipe: 'recipes.sao.recipe:SAORecipe'}\n"
    "evaluation: {tasks: [one, two, three, four, five], "
    "score: 'tests.evaluator.verifiers:length'"
)

REPLAY = (
    "reef:\n  recipe: recipes.sao.recipe:SAORecipe\n  batch_size: 1\n  max_staleness: 18\n"
    "evaluation: {min_pairs: 5}\n"
)
"""A small serve.yaml without tasks: held-out samples decide."""


@dataclass
class EpisodeNode:
    """A node. `answer(model, messages, seed, i)` gives the i-th text; `fails` counts down the
    calls that fail with `failure`: `load`, `probe`, and episodes by a part of the model's
    name.
    """

    url: str = "http://node-1"
    adapters: dict[str, str] = field(default_factory=dict)
    answer: Callable[[str, list[dict[str, Any]], int, int], str] = (
        lambda model, _messages, _seed, _i: "good" if "cand" in model else "x"
    )
    fails: dict[str, float] = field(default_factory=dict)
    failure: type[Exception] = Unavailable
    down: bool = False
    full: bool = False
    lies: bool = False
    asked: list[tuple[str, list[dict[str, Any]], int]] = field(default_factory=list)
    scored: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    priorities: set[int] = field(default_factory=set)
    seen_names: set[str] = field(default_factory=set)
    logprob: Callable[[str, list[int]], float] = lambda _model, _tokens: -1.0

    async def models(self) -> dict[str, str | None]:
        self._up()
        return {"reef": "/base", **self.adapters}

    async def is_paused(self) -> bool:
        self._up()
        return False

    async def weights(self, *, tensors: bool = False, timeout_s: float = 10.0) -> NodeWeights:
        self._up()
        assert not tensors
        return NodeWeights("base")

    async def context_tokens(self) -> int | None:
        return 4096

    async def load_adapter(self, name: str, path: str) -> None:
        self._up()
        self._failing("load")
        if self.full:
            raise Poison(f"{self.url} refused: no slot")
        assert Path(path).is_dir()
        self.adapters[name] = path
        self.seen_names.add(name)

    async def unload_adapter(self, name: str) -> None:
        self._up()
        self.adapters.pop(name, None)

    async def chat(
        self,
        model: str,
        messages: list[dict[str, Any]],
        *,
        n: int = 1,
        timeout_s: float = 1,
        **params: Any,
    ) -> list[Answer]:
        self._has(model)
        self._failing("probe" if params["max_tokens"] == 1 else model)
        seed = int(params.get("seed", 0))
        if "priority" in params:
            self.priorities.add(params["priority"])
        if params["max_tokens"] > 1:
            self.asked.append((model, messages, seed))
        return [
            Answer(self.answer(model, messages, seed, i), "reef" if self.lies else model, "stop")
            for i in range(n)
        ]

    async def prompt_logprobs(
        self, model: str, tokens: list[int], *, priority: int = 0, timeout_s: float = 1
    ) -> list[float]:
        self._has(model)
        self._failing(model)
        self.priorities.add(priority)
        self.scored.append((model, tuple(tokens)))
        return [self.logprob(model, tokens)] * (len(tokens) - 1)

    def _up(self) -> None:
        if self.down:
            raise Unavailable(f"{self.url} does not answer")

    def _has(self, model: str) -> None:
        self._up()
        if model != "reef" and model not in self.adapters:
            raise Poison(f"{self.url} has no model {model}")

    def _failing(self, place: str) -> None:
        for part, left in self.fails.items():
            if part in place and left > 0:
                self.fails[part] = left - 1
                raise self.failure(f"{self.url} failed at {part}")


@dataclass
class FakeLog:
    """The candidates without a verdict that the log holds, and the verdicts."""

    candidates: list[CandidateProposed] = field(default_factory=list)
    verdicts: list[CandidateEvaluated] = field(default_factory=list)

    async def read(self) -> tuple[list[CandidateProposed], list[CandidateEvaluated]]:
        return self.candidates, self.verdicts


@dataclass
class World:
    redis: Redis
    state: Path
    text: str
    nodes: list[EpisodeNode] = field(default_factory=lambda: [EpisodeNode()])
    store: FakeStore = field(default_factory=FakeStore)
    events: FakeEvents = field(default_factory=FakeEvents)
    head: Release | None = None
    log: FakeLog = field(default_factory=FakeLog)
    gateway_url: str = "http://127.0.0.1:9"
    within_s: float = 2

    async def process(self) -> Handlers:
        settings = Settings(episode_attempts=3, first_delay_s=0, episode_within_s=self.within_s)
        system = SystemSettings(state_dir=self.state, gateway_url=self.gateway_url)
        nodes: Any = tuple(self.nodes)
        return build(
            Plans.load(parse(self.text)),
            settings,
            Outside(system, self.redis, self.store, nodes, self.events),
            candidates=self.log,
        )

    async def on_candidate(self, event: CandidateProposed, process: Handlers | None = None) -> None:
        """Hand over a candidate, and wait until no trial is running."""
        process = process or await self.process()
        await process.on_candidate(event)
        await process.trials.settled()
        if process.trials.failing:
            raise Unavailable(str(process.trials.failing))

    async def look(self, process: Handlers | None = None) -> list[WaitingCandidate]:
        """One round, and the candidates that it left waiting. Raises what interrupted a trial."""
        process = process or await self.process()
        with suppress(Unavailable):
            await process.trials.round()
        await process.trials.settled()
        waiting = await process.trials.round()
        await process.trials.settled()
        return waiting

    async def advance(
        self,
        release_id: str = "r0-000000",
        *,
        adapter: str | None = None,
        moves: str = "weights",
        **contents: str,
    ) -> Release:
        """A new head of which only the contents of the group `moves` are new."""
        parent = self.head
        sequence = parent.sequence + 1 if parent else 0
        loads = parent.loads if parent else dict.fromkeys(GROUPS, "i:0")
        loads = {**loads, moves: f"i:{sequence}"}
        self.head = Release(
            release_id=release_id,
            scenario="default",
            sequence=sequence,
            parent_id=parent.release_id if parent else None,
            kind="base",
            content_id="base",
            contents={"base": "base", **contents},
            operation="creation",
            load_id=loads["weights"],
            loads=loads,
            adapter=adapter,
            created_at=utc_now(),
        )
        await RedisReleaseHeads(self.redis).advance(self.head)
        return self.head

    async def advance_again(self) -> None:
        """Put the head back into a store that was emptied."""
        assert self.head is not None
        await RedisReleaseHeads(self.redis).advance(self.head)

    def verdicts(self) -> list[Evaluation]:
        return [event.evaluation for event in self.events.of(CandidateEvaluated)]

    async def verdict(self, event: CandidateProposed) -> Evaluation:
        """The verdict on one candidate; afterwards nothing of it is left on the nodes or on
        disk.
        """
        before = len(self.verdicts())
        process = await self.process()
        await self.on_candidate(event, process)
        found = self.verdicts()[before:]
        assert len(found) == 1
        assert not any("@cand-" in name for node in self.nodes for name in node.adapters)
        assert not self.state.joinpath("evaluator").is_dir() or not list(
            self.state.joinpath("evaluator").iterdir()
        )
        return found[0]


def candidate(
    seed: str = "a",
    *,
    base: str = "r0-000000",
    kind: Kind = "lora",
    content_id: str | None = None,
    recipe: str = SAO,
) -> CandidateProposed:
    return CandidateProposed(
        event_id="cnd-" + digest(seed, base),
        at=utc_now(),
        scenario="default",
        kind=kind,
        content_id=content_id or content(kind, seed),
        base_release_id=base,
        lineage=Lineage(recipe=recipe),
    )


def scored(i: int, score: float, tokens: tuple[int, ...] = (1, 2, 3, 4)) -> SampleReady:
    return SampleReady(
        event_id=f"smp-{i}",
        at=utc_now(),
        scenario="default",
        record_ids=(f"rec-{i}",),
        score=score,
        tokens=tokens,
        prompt_length=2,
        loss_mask=(1,) * (len(tokens) - 2),
        logprobs=(-1.0,) * (len(tokens) - 2),
        recorded_at=utc_now(),
    )


@pytest.fixture
async def world(redis_url: str, tmp_path: Path) -> AsyncIterator[World]:
    client = connect(urlsplit(redis_url)._replace(path="/42").geturl())
    await client.flushdb()
    found = World(client, tmp_path, TASKS + "}")
    await found.advance()
    yield found
    await client.aclose()
