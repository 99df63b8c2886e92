"""The requests of a priority: a queue, the prompt being read, a running batch."""

from bisect import insort
from functools import partial
from itertools import islice, takewhile

from torch import Tensor

from services.engine.batch import RunningBatch, attempt
from services.engine.domain.batching import admissible_count, joint_prompt_count
from services.engine.domain.outputs import Delta, Failed, PromptScores
from services.engine.domain.work import Counters, Post, Work
from services.engine.runner import PROMPTS_AT_ONCE, ModelRunner
from services.engine.sampler import score_prompt


class Lane:
    """Users and background work have a lane each, with its own rows."""

    # So a long background prompt can wait, half read, while users' prompts are read, and full
    # background rows keep no user out.

    def __init__(self, runner: ModelRunner, batch: RunningBatch, counters: Counters) -> None:
        self._runner = runner
        self._scratch = runner.new_rows(PROMPTS_AT_ONCE)
        self._counters = counters
        self._queue: list[Work] = []
        self._reading: Work | None = None
        # Rounds in which prompts are read one by one, after reading them together failed.
        self._apart = 0
        self.batch = batch

    @property
    def waiting(self) -> int:
        """Requests without a row."""
        return len(self._queue) + (self._reading is not None)

    @property
    def started(self) -> bool:
        """True if a request is being read or generated."""
        return bool(self.batch.rows) or self._reading is not None

    def works(self) -> set[Work]:
        reading = [self._reading] if self._reading else []
        return {*reading, *self._queue, *(row.work for row in self.batch.rows)}

    def submit(self, work: Work) -> None:
        """Queue a request by its priority, then by its arrival."""
        insort(self._queue, work, key=lambda one: one.params.priority)

    def can_read(self, *, admit: bool) -> bool:
        """True if a prompt is half read, or (with `admit`) the queue's first fits."""
        return self._reading is not None or (admit and self._fit(1) == 1)

    def read(self, budget: int, version: str, *, admit: bool) -> list[Post]:
        """Read at most `budget` prompt tokens: running rows wait no longer."""
        posts: list[Post] = []
        if admit and self._reading is None:
            budget -= self._read_together(budget, version, posts)
        while budget > 0 and self.can_read(admit=admit):
            if self._reading is None:
                self._reading = self._queue.pop(0)
            budget -= self._read_chunk(self._reading, budget, version, posts)
        return posts

    def step(self, version: str) -> list[Post]:
        """Sample a token for every running row."""
        if not self.batch.rows:
            return []
        self._counters.steps += 1
        return self.batch.step(version)

    def cancel(self, request_id: str) -> None:
        """Remove a request; unknown ids are ignored."""
        self._queue = [work for work in self._queue if work.request_id != request_id]
        if self._reading is not None and self._reading.request_id == request_id:
            self._reading = None
            self._counters.aborted += 1
        self._counters.aborted += len(self.batch.drop(request_id))

    def abort(self, version: str) -> list[Post]:
        """End every request with the reason `abort`."""
        rows = self.batch.drop(None)
        posts: list[Post] = [(r.work.sink, r.ended("abort", r.work.version(version))) for r in rows]
        for work in self.works():
            tag = work.version(version)
            posts += [(work.sink, Delta(i, "", (), tag, "abort")) for i in range(work.params.n)]
        self.clear()
        return posts

    def clear(self) -> None:
        """Forget every request without a row."""
        self._queue, self._reading = [], None

    def _fit(self, most: int) -> int:
        waiting = ((work.params.n, work.length) for work in islice(self._queue, most))
        return admissible_count(waiting, self.batch.shape, self.batch.max_rows)

    def _read_together(self, budget: int, version: str, posts: list[Post]) -> int:
        # Gives the tokens that it cost, padding included.
        if self._apart:
            self._apart -= 1
            return 0
        front = islice(self._queue, self._fit(PROMPTS_AT_ONCE))
        plain = list(takewhile(lambda work: work.params.prompt_logprobs is None, front))
        lengths = [len(work.prompt_ids) for work in plain]
        works = plain[: joint_prompt_count(lengths, budget)]
        if len(works) < 2:
            return 0
        prompts, adapters = [w.prompt_ids for w in works], [w.adapter for w in works]
        forward = partial(self._runner.prefill_whole, prompts, adapters, self._scratch)
        logits = attempt(forward, "reading prompts together")
        if isinstance(logits, Failed):  # each is read alone now, and fails alone
            self._apart = len(works)
            return 0
        # Users and others may have queued requests during the forward.
        self._queue = [work for work in self._queue if work not in works]
        for source, work in enumerate(works):
            self._counters.prompt_tokens += len(work.prompt_ids)
            posts += self._join(work, logits[source : source + 1], version, source)
        return len(works) * max(lengths[: len(works)])

    def _read_chunk(self, work: Work, budget: int, version: str, posts: list[Post]) -> int:
        if work.read_under != version:
            # Replaced meanwhile: one prompt must not hold keys of two models.
            work.read, work.scores, work.read_under = 0, [], version
        start, end = work.read, min(work.read + budget, len(work.prompt_ids))
        logits = attempt(partial(self._forward, work, start, end), "reading the prompt")
        if isinstance(logits, Failed):
            self._reading = None
            posts.append((work.sink, logits))
        elif end == len(work.prompt_ids):
            self._reading = None
            if work.params.prompt_logprobs is not None:
                posts.append((work.sink, PromptScores(tuple(work.scores))))
            posts += self._join(work, logits, version)
        return end - start

    def _forward(self, work: Work, start: int, end: int) -> Tensor:
        # Logits [1, V] of the chunk's last token; the chunk is scored if that was asked for.
        asked = work.params.prompt_logprobs
        ids = work.prompt_ids[start:end]
        logits = self._runner.prefill(
            ids, start, work.adapter, self._scratch, all_logits=asked is not None
        )
        if asked is not None:
            following = work.prompt_ids[start + 1 : end + 1]
            work.scores += score_prompt(logits[: len(following)], following, asked)
        work.read = end
        self._counters.prompt_tokens += len(ids)
        return logits[-1:]

    def _join(self, work: Work, logits: Tensor, version: str, source: int = 0) -> list[Post]:
        join = partial(self.batch.join, work, logits, work.version(version), self._scratch, source)
        posts = attempt(join, "sampling the first token")
        if isinstance(posts, Failed):
            self.batch.drop(work.request_id)
            return [(work.sink, posts)]
        return posts
