"""The node as its routes see it: requests in, streams of events out; everything else is an order to the loop."""

import asyncio
import random
import uuid
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from services.engine.adapters import AdapterRegistry
from services.engine.domain.errors import EngineStoppedError, InvalidRequestError, OverloadedError
from services.engine.domain.outputs import Delta, Event, Failed
from services.engine.domain.sampling import SamplingParams
from services.engine.loop import GenerationLoop
from services.engine.settings import Settings
from services.engine.tokenizer import EngineTokenizer
from services.engine.work import Post, Work


class Generation:
    """One request's events. Leaving the `async with` block before the end cancels it and frees its rows."""

    def __init__(self, loop: GenerationLoop, work_id: str, choices: int) -> None:
        self.request_id = work_id
        self._loop = loop
        self._open = choices
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def put(self, event: Event) -> None:
        """Called on the event loop for every event of the request."""
        self._events.put_nowait(event)

    async def __aenter__(self) -> Self:
        """Nothing to do: the request is already queued."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Cancel what is unfinished."""
        if self._open > 0:
            self._open = 0
            if self._loop.alive:
                self._loop.cancel(self.request_id)

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Events until every choice has its finish reason. Raises what the loop reports as the request's failure."""
        while self._open > 0:
            event = await self._events.get()
            if isinstance(event, Failed):
                self._open = 0
                raise event.error
            if isinstance(event, Delta) and event.finish_reason is not None:
                self._open -= 1
            yield event


class Engine:
    """Everything the routes need. Lives on one asyncio loop."""

    def __init__(
        self, *, settings: Settings, loop: GenerationLoop, tokenizer: EngineTokenizer, adapters: AdapterRegistry
    ) -> None:
        self.settings = settings
        self.loop = loop
        self.tokenizer = tokenizer
        self.adapters = adapters
        self._seeds = random.Random(settings.seed)

    def check_ids(self, ids: list[int], field: str) -> None:
        """Raises `InvalidRequestError` for an id outside the vocabulary."""
        size = self.tokenizer.vocab_size
        if bad := next((i for i in ids if not 0 <= i < size), None):
            raise InvalidRequestError(field, f"token id {bad} is outside the vocabulary (0 to {size - 1})")

    def generate(self, prompt_ids: list[int], params: SamplingParams, model: str | None) -> Generation:
        """Queue a request.

        Raises `NotServedError` (unknown model), `InvalidRequestError`, `OverloadedError`, `EngineStoppedError`.
        """
        adapter = self.adapters.resolve(model)
        if params.n > self.settings.max_num_seqs:
            raise InvalidRequestError("n", f"n must not be above max_num_seqs ({self.settings.max_num_seqs})")
        if not self.loop.alive:
            raise EngineStoppedError("the generation loop has stopped")
        if self.loop.waiting >= self.settings.max_queued_requests:
            raise OverloadedError(f"{self.loop.waiting} requests are waiting already; try again later")
        seed = self._seeds.getrandbits(63) if params.seed is None else params.seed
        generation = Generation(self.loop, uuid.uuid4().hex, params.n)
        self.loop.submit(
            Work(
                request_id=generation.request_id,
                prompt_ids=tuple(prompt_ids),
                params=params,
                adapter=adapter,
                seed=seed,
                sink=generation.put,
            )
        )
        return generation


def deliver_on(loop: asyncio.AbstractEventLoop, posts: list[Post]) -> None:
    """Hand events of the loop's thread over to asyncio: one wake-up per step, whatever the batch size."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(_hand_out, posts)


def _hand_out(posts: list[Post]) -> None:
    for sink, event in posts:
        sink(event)
