"""The node as its routes see it."""

import asyncio
import contextlib
import random
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from services.engine.adapters import AdapterRegistry
from services.engine.domain.batching import ROW_TOKENS
from services.engine.domain.errors import EngineStoppedError, InvalidRequestError, OverloadedError
from services.engine.domain.outputs import Delta, Event, Failed
from services.engine.domain.sampling import SamplingParams, check_ids
from services.engine.domain.work import Post, T, Work
from services.engine.loop import GenerationLoop
from services.engine.settings import Settings
from services.engine.tokenizer import EngineTokenizer
from services.engine.weights import WeightSync


class Generation:
    """The events of an HTTP request, over all its prompts."""

    def __init__(self, loop: GenerationLoop, seed: int) -> None:
        self._loop = loop
        # The seed that the request draws with, its own or the node's choice.
        self.seed = seed
        self._request_ids: list[str] = []
        self._open: set[tuple[int, int]] = set()  # (prompt, choice)
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

    @property
    def ended(self) -> bool:
        """True if every choice has ended."""
        return not self._open

    def add(self, prompt_index: int, work: Work) -> None:
        self._request_ids.append(work.request_id)
        self._open |= {(prompt_index, choice) for choice in range(work.params.n)}

    def put(self, prompt_index: int, event: Event) -> None:
        self._events.put_nowait((prompt_index, event))

    def close(self) -> None:
        """Cancel the unfinished choices and free their rows. May be repeated."""
        with contextlib.suppress(EngineStoppedError):
            for request_id in self._request_ids if self._open else ():
                self._loop.cancel(request_id)
        self._open.clear()

    async def events(self) -> AsyncIterator[tuple[int, Event]]:
        """(prompt index, event) of every choice. Raises the error of a failed request."""
        while self._open:
            index, event = await self._events.get()
            if isinstance(event, Failed):
                raise event.error
            if isinstance(event, Delta) and event.finish_reason is not None:
                self._open.discard((index, event.index))
            yield index, event


@dataclass(eq=False)
class Engine:
    """The routes' view of the node. Lives on an asyncio loop."""

    settings: Settings
    loop: GenerationLoop
    tokenizer: EngineTokenizer
    adapters: AdapterRegistry
    weights: WeightSync

    def __post_init__(self) -> None:
        self.vocab_size = self.loop.runner.vocab_size
        self.most_characters = self.settings.max_model_len * self.tokenizer.longest_token
        self._texts = ThreadPoolExecutor(2, thread_name_prefix="texts")
        self._seeds = random.Random(self.settings.seed)

    def encode(self, text: str, field: str) -> list[int]:
        """Ids of a prompt. Raises `InvalidRequestError` if it does not fit into the context."""
        self.check_length(len(text), field)
        ids = self.tokenizer.encode(text)
        if len(ids) > self.settings.max_model_len:
            raise self._too_long(field, f"the prompt has {len(ids)}")
        return ids

    def check_length(self, characters: int, field: str) -> None:
        """Raises `InvalidRequestError` if a text of so many characters cannot fit."""
        # Without it a text of 8 MB is tokenized for seconds before it is refused.
        if characters > self.most_characters:
            raise self._too_long(field, f"more than {self.most_characters} characters do not fit")

    async def run_on_thread(self, work: Callable[[], T], field: str) -> T:
        """Run work on a client's text on a thread.

        Raises `InvalidRequestError` if it takes longer than `text_timeout_s`, `OverloadedError` if
        no thread was free for so long.
        """
        limit_s = self.settings.text_timeout_s
        future = self._texts.submit(work)
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), limit_s)
        except TimeoutError as error:
            if future.cancelled():
                raise OverloadedError("other texts are being prepared; try again later") from error
            raise InvalidRequestError(
                field, f"{field}: the prompt could not be prepared within {limit_s:g} s"
            ) from error

    def generate(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams], model: str | None
    ) -> Generation:
        """Queue prompts, all or none, with the seed of the first.

        Raises `NotServedError`, `InvalidRequestError`, `OverloadedError`, `EngineStoppedError`.
        """
        adapter = self.adapters.resolve(model)
        for ids, one in zip(prompts, params, strict=True):
            check_ids("prompt", ids, self.vocab_size)
            one.check_vocabulary(self.vocab_size, self.loop.runner.eos_ids)
        self._check_room(prompts, params)
        given = params[0].seed
        seed = self._seeds.getrandbits(63) if given is None else given
        generation = Generation(self.loop, seed)
        streams = 0
        for index, (ids, one) in enumerate(zip(prompts, params, strict=True)):
            work = Work(
                request_id=uuid.uuid4().hex,
                prompt_ids=tuple(ids),
                params=one,
                adapter=adapter,
                seed=seed,
                first_stream=streams,
                sink=partial(generation.put, index),
            )
            streams += one.n
            generation.add(index, work)
            self.loop.submit(work)
        return generation

    def _too_long(self, field: str, reason: str) -> InvalidRequestError:
        limit = self.settings.max_model_len
        message = f"This model's maximum context length is {limit} tokens: {reason}"
        return InvalidRequestError(field, message)

    def _check_room(
        self, prompts: Sequence[Sequence[int]], params: Sequence[SamplingParams]
    ) -> None:
        most, count = self.settings.max_num_seqs, len(prompts)
        if any(one.n > most for one in params):
            raise InvalidRequestError("n", f"n must not be above max_num_seqs ({most})")
        tokens, asked = most * ROW_TOKENS, zip(prompts, params, strict=True)
        if any(one.n > 1 and one.n * (len(ids) + one.max_tokens) > tokens for ids, one in asked):
            words = f"n times (prompt + max_tokens) must not be above {tokens}; name a max_tokens"
            raise InvalidRequestError("n", words)
        if not self.loop.alive:
            raise EngineStoppedError("the generation loop has stopped")
        waiting = self.loop.lane(background=any(one.priority > 0 for one in params)).waiting
        if waiting + count > self.settings.max_queued_requests:
            raise OverloadedError(f"{waiting} requests are waiting already; try again later")


def deliver_on(loop: asyncio.AbstractEventLoop, posts: list[Post]) -> None:
    """Hand events of the loop's thread to asyncio."""
    # A wake-up per step, not per event: with 32 rows the wake-ups cost more than the step's own
    # Python.
    if not loop.is_closed():
        loop.call_soon_threadsafe(_hand_out, posts)


def _hand_out(posts: list[Post]) -> None:
    for sink, event in posts:
        sink(event)
