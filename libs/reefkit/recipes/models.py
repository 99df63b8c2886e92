"""`ctx.models`: calls of a recipe to models, counted, kept until their result is stored, logged.

Requests run on the loop of the host; a recipe that blocks its thread does not disturb them.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NoReturn, TypeVar

import orjson

from reefcommon.config_sections import SERVED, ModelEndpoint
from reefcommon.errors import Poison
from reefcommon.ids import digest
from reefcommon.recipe_context import Messages, ModelFailed, Reply
from reefkit.jobs import metrics
from reefkit.jobs.recipe_store import CallEnd, CallKey, RecipeStore, Use
from reefkit.recipes.budget import Budget
from reefkit.recipes.endpoint import Answered, Endpoint, ModelAway, replies, scores

T = TypeVar("T")
CHAT, COMPLETIONS = "/chat/completions", "/completions"
_GATEWAY_KEY = "x-reef-agent-record-id"


class UnknownModel(ModelAway, KeyError):
    """`serve.yaml` has no model of this name."""

    def __str__(self) -> str:  # KeyError would show its repr
        return str(self.args[0])


class StepBudgetSpent(Poison):
    """A step has asked as often as it may. Its samples are settled: they would ask again."""


class ModelPool:
    """The models of a host, with their connections and budgets."""

    def __init__(
        self,
        store: RecipeStore,
        entries: Mapping[str, ModelEndpoint] | None = None,
        *,
        gateway_url: str = "",
        model_name: str = "reef",
        priority: int = 0,
    ) -> None:
        """`priority`: of questions to Reef's own model. Raises BadConfig if a key is unreadable."""
        every = dict(entries or {})
        own = every.get(SERVED, ModelEndpoint())
        if gateway_url:
            at = {"url": f"{gateway_url.rstrip('/')}/v1", "model": own.model or model_name}
            every[SERVED] = own.model_copy(update=at)
        self.endpoints = {name: Endpoint(name, entry) for name, entry in every.items()}
        self.budgets = {name: Budget(name, entry, store) for name, entry in every.items()}
        self.store, self.priority = store, priority

    async def call(self, request: "Request") -> Answered:
        """Return the kept answer, or ask. Raises BudgetSpent, ModelFailed."""
        key, endpoint = request.key, self.endpoints[request.model]
        if key is not None:
            kept = await asyncio.to_thread(self.store.kept_answer, key)
            if kept is not None:
                return Answered(**orjson.loads(kept))
        async with endpoint.places:
            await self.budgets[request.model].begin(key)
            began, answered = time.monotonic(), None
            try:
                answered = await endpoint.ask(request.path, request.body, request.headers)
                request.read(answered)
            except ModelFailed as error:
                # A call without an answer is not counted: a key counts once for all its tries.
                away = isinstance(error, ModelAway)
                returned = key is None and away and answered is None
                metrics.MODEL_CALLS.labels(request.model, "away" if away else "failed").inc()
                outcome = str(error)[:200]
                await self._end(request, began, answered, outcome=outcome, returned=returned)
                raise
            metrics.MODEL_CALLS.labels(request.model, "ok").inc()
            await self._end(request, began, answered)
            return answered

    async def _end(
        self,
        request: "Request",
        began: float,
        answered: Answered | None,
        *,
        outcome: str = "ok",
        returned: bool = False,
    ) -> None:
        use = Use(0, answered.prompt_tokens, answered.completion_tokens) if answered else Use()
        end = CallEnd(
            binding=request.binding,
            subject=request.subject,
            model=request.model,
            purpose=request.purpose,
            use=use,
            seconds=round(time.monotonic() - began, 3),
            outcome=outcome,
            # An answer that cannot be read is asked for again.
            body=orjson.dumps(answered) if outcome == "ok" and request.key else None,
        )
        await self.budgets[request.model].end(request.key, end, returned=returned)

    def facts(self) -> dict[str, Any]:
        """Return the use of each model and its limits. Blocks."""
        return {name: budget.facts() for name, budget in self.budgets.items()}

    async def close(self) -> None:
        for endpoint in self.endpoints.values():
            await endpoint.close()


@dataclass(frozen=True, slots=True)
class Request:
    """A call of a recipe. `key` None: its answer is not kept."""

    model: str
    path: str
    body: Mapping[str, Any]
    purpose: str
    binding: str
    subject: str
    headers: Mapping[str, str]
    key: CallKey | None

    def read(self, answered: Answered) -> Any:
        """Return the replies of a chat, or the scores of a prompt. Raises ModelFailed."""
        if self.path == CHAT:
            return replies(self.model, answered, self.body["n"])
        return scores(self.model, answered, self.body["prompt"])


@dataclass(frozen=True, slots=True)
class Exchange:
    """A call and its answer, for people."""

    model: str
    purpose: str
    asked: Any
    answers: tuple[str, ...]
    tokens: int
    seconds: float


@dataclass(slots=True)
class Caller:
    """A call of recipe code that asks models, on the recipe's loop.

    `subject` "": answers are not kept. `loop`: that of the host. `dialogue`: its exchanges so far.
    `at_most`: its questions; 0: no limit.
    """

    binding: str
    scenario: str
    subject: str
    loop: asyncio.AbstractEventLoop
    pool: ModelPool
    dialogue: list[Exchange] = field(default_factory=list)
    at_most: int = 0
    _asked: Counter[str] = field(default_factory=Counter)

    def request(self, model: str, path: str, body: dict[str, Any], purpose: str) -> Request:
        if 0 < self.at_most <= self._asked.total():
            raise StepBudgetSpent(f"the step has asked models {self.at_most} times, its limit")
        named, purpose = digest("call", model, path, body), header_text(purpose)[:200]
        ordinal = self._asked[named]
        self._asked[named] += 1
        key = CallKey(self.binding, self.subject, named, ordinal) if self.subject else None
        headers: dict[str, str] = {}
        if key is not None:
            parts = (self.binding, self.subject, named, ordinal)
            headers["idempotency-key"] = "reef-" + digest("call", *parts)
        if model == SERVED:
            headers["x-reef-scenario"] = self.scenario
            headers["x-reef-tag-turn-type"] = "side"
            headers["x-reef-harness"] = "false"  # a judge is no user
            headers["x-reef-tag-purpose"] = purpose
            if self.pool.priority:  # users have 0 and go first
                body = {"priority": self.pool.priority, **body}
            if key is not None:
                # The gateway answers the same receipt with the same answer.
                headers[_GATEWAY_KEY] = headers["idempotency-key"].replace("reef-", "side-")
        return Request(model, path, body, purpose, self.binding, self.subject, headers, key)

    async def ask(self, request: Request) -> Any:
        return request.read(await self.on_host(self.pool.call(request)))

    async def on_host(self, work: Awaitable[T]) -> T:
        """Await `work` on the loop of the host."""
        if asyncio.get_running_loop() is self.loop:
            return await work
        future = asyncio.run_coroutine_threadsafe(_awaited(work), self.loop)
        return await asyncio.wrap_future(future)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


def header_text(text: str) -> str:
    """Return a text as a header can hold it."""
    shown = "".join(character if character.isprintable() else " " for character in text)
    return " ".join(shown.split())


def check_params(params: Mapping[str, Any]) -> None:
    """Raises Poison for parameters that would be sent as others."""
    for name, value in params.items():
        if isinstance(value, float) and not isfinite(value):
            raise Poison(f"{name}: {value} is not finite")
    if params.get("stream"):
        raise Poison("stream: a recipe gets whole answers, leave it out")


@dataclass(frozen=True, slots=True)
class HostedModel:
    """`Model` of a caller."""

    name: str
    caller: Caller

    async def chat(
        self, messages: Messages, *, purpose: str, n: int = 1, **params: Any
    ) -> list[Reply]:
        check_params(params)
        body = {**params, "messages": [dict(message) for message in messages], "n": n}
        began, caller = time.monotonic(), self.caller
        found: list[Reply] = await caller.ask(caller.request(self.name, CHAT, body, purpose))
        texts, seconds = tuple(reply.text for reply in found), round(time.monotonic() - began, 3)
        asked = body["messages"]
        caller.dialogue.append(Exchange(self.name, purpose, asked, texts, found[0].tokens, seconds))
        return found

    async def score(self, tokens: Sequence[int], *, purpose: str) -> list[float]:
        prompt = [int(token) for token in tokens]
        body = {"prompt": prompt, "prompt_logprobs": 0, "max_tokens": 1, "temperature": 0}
        caller = self.caller
        found: list[float] = await caller.ask(caller.request(self.name, COMPLETIONS, body, purpose))
        return found


class Models(Mapping[str, HostedModel]):
    """The models that a caller may ask, by name."""

    def __init__(self, caller: Caller) -> None:
        self._caller, self._names = caller, tuple(caller.pool.endpoints)

    def __getitem__(self, name: str) -> HostedModel:
        if name not in self._names:
            self._refuse(name)
        return HostedModel(name, self._caller)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def _refuse(self, name: str) -> NoReturn:
        there = ", ".join(self._names) or "none"
        raise UnknownModel(f"serve.yaml has no model {name!r} under `models:`; there: {there}")
