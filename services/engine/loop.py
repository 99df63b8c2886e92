"""The generation loop: one thread that reads prompts, steps the batch, and takes orders between two steps."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from itertools import islice, takewhile
from typing import TypeVar

import structlog

from services.engine.batch import RunningBatch, version_of
from services.engine.domain.batching import admissible, chunk_end, together
from services.engine.domain.errors import EngineStoppedError
from services.engine.domain.outputs import Delta, Failed, PromptScores
from services.engine.orders import Orders
from services.engine.runner import PROMPTS_AT_ONCE, ModelRunner
from services.engine.sampler import score_prompt
from services.engine.work import Post, Work

log = structlog.get_logger(__name__)
T = TypeVar("T")


class PauseMode(Enum):
    """What a pause does to the requests in flight."""

    ABORT = "abort"
    WAIT = "wait"
    KEEP = "keep"


@dataclass(slots=True)
class Counters:
    """Totals since start."""

    prompt_tokens: int = 0
    generated_tokens: int = 0
    steps: int = 0
    finished: int = 0
    aborted: int = 0


class GenerationLoop:
    """Public methods may be called from any thread; each hands an order to the loop's own thread.

    `deliver` gets the events of one step at once, in order, on the loop's thread.
    """

    def __init__(
        self,
        runner: ModelRunner,
        batch: RunningBatch,
        *,
        max_rows: int,
        prefill_chunk: int,
        version: str,
        deliver: Callable[[list[Post]], None],
        on_crash: Callable[[BaseException], None],
    ) -> None:
        self._runner = runner
        self._batch = batch
        self._max_rows = max_rows
        self._prefill_chunk = prefill_chunk
        self._deliver = deliver
        self._on_crash = on_crash
        self._orders = Orders()
        self._waiting: deque[Work] = deque()
        self._reading: Work | None = None
        self._outbox: list[Post] = []
        self._apart = (
            0  # rounds in which prompts are read one by one, after they could not be read together
        )
        self._pause: PauseMode | None = None
        self._drained: list[Future[None]] = []
        self._stopping = False
        self.version = version
        """Of the base weights; changed by orders alone, so between two steps."""
        self.counters = Counters()
        self._thread = threading.Thread(target=self._run, name="generation-loop", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End the thread after the step in progress; requests in flight fail."""
        if self.alive:
            self._orders.put(self._stop)
            self._thread.join(timeout_s)

    @property
    def alive(self) -> bool:
        """Whether tokens can still be made."""
        return self._thread.is_alive() and not self._stopping

    @property
    def waiting(self) -> int:
        """Requests that have no row yet."""
        return len(self._waiting) + (self._reading is not None)

    @property
    def running(self) -> int:
        """Choices in the batch."""
        return len(self._batch.rows)

    @property
    def cached_tokens(self) -> int:
        """Tokens held in the batch's rows."""
        return self._batch.cached_tokens

    @property
    def paused(self) -> bool:
        """No step is made and none will be until `resume`."""
        return self._pause is not None and not self._drained

    def submit(self, work: Work) -> None:
        """Queue a request. Raises `EngineStoppedError`, as every order does."""
        self._orders.put(lambda: self._waiting.append(work))

    def cancel(self, request_id: str) -> None:
        """Forget a request wherever it is; nothing more is delivered for it. Unknown ids are ignored."""
        self._orders.put(lambda: self._cancel(request_id))

    def call(self, action: Callable[[], T]) -> "Future[T]":
        """Run `action` between two steps, also while paused. Its error goes to the future."""
        return self._orders.call(action)

    def pause(self, mode: PauseMode) -> "Future[None]":
        """Stop stepping. Done when no step will follow (for `WAIT`: when the running requests have ended)."""
        future: Future[None] = Future()
        self._orders.put(lambda: self._do_pause(mode, future))
        return future

    def resume(self) -> "Future[None]":
        """Step again."""
        return self.call(self._do_resume)

    def _run(self) -> None:
        crash: Exception | None = None
        try:
            while not self._stopping:
                self._tick()
        except Exception as error:  # the top of the thread: whatever broke, the node ends with it
            crash = error
        self._stopping = True
        self._fail_everything()
        if crash is not None:
            self._on_crash(crash)

    def _tick(self) -> None:
        self._orders.take(wait=not self._can_step())
        if self._stopping:
            return
        if self._pause in (None, PauseMode.WAIT):
            self._read_prompts()
            if self._batch.rows:
                self._post(self._batch.step(self.version))
                self.counters.steps += 1
        if self._drained and not self._batch.rows and self._reading is None:
            self._settle_drained()
        self._flush()

    def _can_step(self) -> bool:
        busy = bool(self._batch.rows) or self._reading is not None
        if self._pause is None:
            return busy or bool(self._waiting)
        return self._pause is PauseMode.WAIT and bool(self._drained) and busy

    def _read_prompts(self) -> None:
        """Read prompts, at most one chunk's worth of tokens per tick, so that decoding rows never wait longer."""
        budget = self._prefill_chunk - self._read_together(self._prefill_chunk)
        while budget > 0 and (self._reading is not None or self._admit()):
            budget -= self._read_chunk(budget)

    def _read_together(self, budget: int) -> int:
        """Whole prompts from the front of the queue in one forward, where there are several short ones. Gives the tokens that it cost."""
        if (
            self._reading is not None
            or self._pause is not None
            or len(self._waiting) < 2
            or self._apart
        ):
            self._apart = max(self._apart - 1, 0)
            return 0
        fit = admissible(
            [work.params.n for work in islice(self._waiting, PROMPTS_AT_ONCE)],
            self._max_rows - len(self._batch.rows),
        )
        plain = list(
            takewhile(lambda work: work.params.prompt_logprobs is None, islice(self._waiting, fit))
        )
        works = plain[: together((len(work.prompt_ids) for work in plain), budget, PROMPTS_AT_ONCE)]
        if len(works) < 2:
            return 0
        try:
            logits = self._runner.prefill_whole(
                [work.prompt_ids for work in works], [work.adapter for work in works]
            )
        except RuntimeError as error:  # one of them: each is read alone, and fails alone
            log.warning("prefill_together_failed", requests=len(works), error=str(error))
            self._apart = len(works)
            return 0
        for source, work in enumerate(works):
            self._waiting.popleft()
            self.counters.prompt_tokens += len(work.prompt_ids)
            self._post(
                self._batch.join(
                    work, logits[source : source + 1], version_of(work, self.version), source
                )
            )
        return len(works) * max(len(work.prompt_ids) for work in works)

    def _admit(self) -> bool:
        if self._pause is not None or not self._waiting:
            return False
        if not admissible([self._waiting[0].params.n], self._max_rows - len(self._batch.rows)):
            return False
        self._reading = self._waiting.popleft()
        return True

    def _read_chunk(self, budget: int) -> int:
        work = self._reading
        assert work is not None
        if (
            work.read and work.read_under != self.version
        ):  # replaced meanwhile: keys of two models in one prompt would be no one's
            work.read, work.scores = 0, []
        work.read_under = self.version
        start, end = work.read, chunk_end(work.read, len(work.prompt_ids), budget)
        try:
            self._read(work, start, end)
        except (
            RuntimeError
        ) as error:  # torch's: out of memory, a bad id. It is this request's alone.
            log.warning("prefill_failed", request_id=work.request_id, error=str(error))
            self._reading = None
            self._batch.drop(work.request_id)
            self._outbox.append((work.sink, Failed(error)))
        return end - start

    def _read(self, work: Work, start: int, end: int) -> None:
        asked = work.params.prompt_logprobs
        ids = work.prompt_ids[start:end]
        logits = self._runner.prefill(ids, start, work.adapter, all_logits=asked is not None)
        work.read = end
        self.counters.prompt_tokens += len(ids)
        if asked is not None:
            following = work.prompt_ids[start + 1 : end + 1]
            work.scores += score_prompt(logits[: len(following)], following, asked)
        if work.unread:
            return
        self._reading = None
        if asked is not None:
            self._outbox.append((work.sink, PromptScores(tuple(work.scores))))
        self._post(self._batch.join(work, logits[-1:], version_of(work, self.version)))

    def _post(self, posts: list[Post]) -> None:
        for _, event in posts:
            if isinstance(event, Delta):
                self.counters.generated_tokens += len(event.tokens)
                self.counters.finished += event.finish_reason is not None
        self._outbox += posts

    def _flush(self) -> None:
        if self._outbox:
            posts, self._outbox = self._outbox, []
            self._deliver(posts)

    def _cancel(self, request_id: str) -> None:
        self._waiting = deque(work for work in self._waiting if work.request_id != request_id)
        if self._reading is not None and self._reading.request_id == request_id:
            self._reading = None
            self.counters.aborted += 1
        self.counters.aborted += len(self._batch.drop(request_id))

    def _do_pause(self, mode: PauseMode, future: "Future[None]") -> None:
        if not future.set_running_or_notify_cancel():
            return
        self._pause = mode
        if mode is PauseMode.ABORT:
            self._abort_all()
        if mode is PauseMode.WAIT and (self._batch.rows or self._reading is not None):
            self._drained.append(future)
        else:
            future.set_result(None)
            self._settle_drained()

    def _do_resume(self) -> None:
        self._pause = None
        self._settle_drained()

    def _settle_drained(self) -> None:
        for future in self._drained:
            future.set_result(None)
        self._drained.clear()

    def _abort_all(self) -> None:
        for row in self._batch.drop(None):
            self._post(
                [(row.work.sink, row.state.ended("abort", version_of(row.work, self.version)))]
            )
        unstarted = [*([self._reading] if self._reading else []), *self._waiting]
        self._reading = None
        self._waiting.clear()
        for work in unstarted:
            version = version_of(work, self.version)
            self._post(
                [(work.sink, Delta(i, "", (), version, "abort")) for i in range(work.params.n)]
            )

    def _stop(self) -> None:
        self._stopping = True

    def _fail_everything(self) -> None:
        error = EngineStoppedError("the generation loop has stopped")
        self._settle_drained()
        self._orders.close()
        unstarted = [self._reading] if self._reading else []
        works = {*unstarted, *self._waiting, *(row.work for row in self._batch.rows)}
        self._waiting.clear()
        self._reading = None
        self._outbox += [(work.sink, Failed(error)) for work in works]
        self._flush()
