"""The runtime of a binding: its thread, and a context for each call of its recipe."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar

from reefcommon.config_sections import SERVED, EvaluationSection
from reefcommon.errors import BadConfig
from reefcommon.events import Event, Release
from reefcommon.harness.tree import Tree
from reefcommon.recipe import Recipe
from reefcommon.recipe_context import Model, Outcome, RunProgram, TrialResult
from reefkit.jobs.recipe_store import Effects
from reefkit.jobs.store import JobStore
from reefkit.limited import Places
from reefkit.recipe_binding import Binding
from reefkit.recipes.host_ends import HostEnds
from reefkit.recipes.models import Caller, Exchange, ModelPool, Models
from reefkit.recipes.state import BufferedState
from reefkit.recipes.thread import RecipeThread
from reefkit.recipes.trial import Minibatches
from reefkit.retry import RetryPolicy

T = TypeVar("T")
MAX_DIALOGUE, MAX_TEXT_CHARS = 64, 4_000


class Programs(Protocol):
    """The sandbox of a host. Thread-safe."""

    @property
    def run(self) -> RunProgram: ...

    def describe(self) -> str:
        """Return the isolation in use, for `/status`."""


@dataclass(slots=True)
class OwnPrograms:
    """The sandbox of a binding: few of its programs wait there, so that others get a turn."""

    programs: Programs
    at_once: int = field(default_factory=lambda: os.cpu_count() or 1)
    _places: Places = field(init=False)

    def __post_init__(self) -> None:
        self._places = Places(self.at_once)

    async def run(self, program: str, **options: Any) -> Outcome:
        async with self._places.here():
            return await self.programs.run(program, **options)

    def describe(self) -> str:
        return self.programs.describe()


@dataclass(frozen=True, slots=True)
class RecipeServices:
    """The parts that the recipes of a host share.

    `signal_log` returns all events of the topic of signals, or is absent in a host without a log.
    """

    store: JobStore
    clock: Callable[[], datetime]
    models: ModelPool
    retry: RetryPolicy
    signals_at_once: int = 8
    signal_timeout_s: float = 600.0
    verdict_timeout_s: float = 600.0
    signal_log: Callable[[], Awaitable[Sequence[Event]]] | None = None
    programs: Programs | None = None
    evaluation: EvaluationSection = field(default_factory=EvaluationSection)
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    # By binding; a runtime puts in its own.
    minibatches: dict[str, Minibatches] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecipeContext:
    """`Context` of a call. Make it on the loop of the host; use it on the recipe's thread."""

    scenario: str
    services: RecipeServices
    caller: Caller
    store: BufferedState

    @property
    def head(self) -> Release | None:
        return self.services.store.head(self.scenario)

    @property
    def models(self) -> Mapping[str, Model]:
        return Models(self.caller)

    def now(self) -> datetime:
        return self.services.clock()

    @property
    def run(self) -> RunProgram:
        """Raises BadConfig if this host runs no programs."""
        if self.services.programs is None:
            raise BadConfig("this host runs no programs of recipes")
        return self.services.programs.run

    async def trial(
        self, candidates: Sequence[Tree], tasks: Sequence[Any], **options: Any
    ) -> list[TrialResult]:
        minibatches = self.services.minibatches[self.caller.binding]
        return await minibatches.trial(self.models[SERVED], candidates, tasks, **options)

    def effects(self) -> Effects:
        """Return the traces of the call, to be saved with its result."""
        return self.store.effects(self.caller.subject)

    def dialogue(self) -> list[dict[str, Any]]:
        """Return the last exchanges with models, shortened, for people."""
        return [_shown(exchange) for exchange in self.caller.dialogue[-MAX_DIALOGUE:]]


class RecipeRuntime:
    """The thread and the contexts of a binding."""

    def __init__(self, binding: Binding[Recipe], services: RecipeServices) -> None:
        own = OwnPrograms(services.programs) if services.programs is not None else None
        services = replace(services, programs=own)
        self.binding, self.services = binding, services
        self.thread = RecipeThread(binding.dotted)
        self.ends = HostEnds(services.store, binding.key, binding.recipe, services.turn)
        run = own.run if own is not None else None
        services.minibatches[binding.key] = Minibatches(
            binding.scenario, binding.recipe, services.evaluation, run
        )

    def context(self, subject: str = "", *, calls: int = 0) -> RecipeContext:
        """Make the context of a call. Answers of models are kept for a `subject`.

        `calls`: questions to models at most; 0: no limit.
        """
        binding, services = self.binding, self.services
        loop = asyncio.get_running_loop()
        caller = Caller(
            binding.key, binding.scenario, subject, loop, services.models, at_most=calls
        )
        state = BufferedState(services.store, binding.key)
        return RecipeContext(binding.scenario, services, caller, state)

    async def call(
        self, function: Callable[..., Awaitable[T]], *arguments: Any, timeout_s: float | None
    ) -> T:
        """Run recipe code on its thread. Raises as `RecipeThread.call`."""
        return await self.thread.call(function, *arguments, timeout_s=timeout_s)

    def stop(self) -> None:
        self.thread.stop()


def _shown(exchange: Exchange) -> dict[str, Any]:
    asked = [
        {**message, "content": _short(message.get("content"))} for message in exchange.asked[-20:]
    ]
    return {
        "model": exchange.model,
        "purpose": exchange.purpose,
        "asked": asked,
        "answers": [_short(text) for text in exchange.answers[:16]],
        "tokens": exchange.tokens,
        "seconds": exchange.seconds,
    }


def _short(content: Any) -> Any:
    text = content if isinstance(content, str) else str(content)
    left_out = len(text) - MAX_TEXT_CHARS
    return text if left_out <= 0 else f"{text[:MAX_TEXT_CHARS]}… ({left_out} characters more)"
