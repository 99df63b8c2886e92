"""The running batch: a token for each row per step."""

from collections.abc import Callable, Sequence
from functools import partial

import structlog
from torch import Tensor

from services.engine.domain.batching import Shape, closing_moves
from services.engine.domain.errors import RequestFailedError
from services.engine.domain.outputs import Delta, Failed, TokenLogprob
from services.engine.domain.sequence import SequenceState, TextRules
from services.engine.domain.work import Post, T, Work
from services.engine.kv import KVRows
from services.engine.runner import ModelRunner
from services.engine.sampler import sample

log = structlog.get_logger(__name__)


def attempt(action: Callable[[], T], what: str) -> T | Failed:
    """Run a part of the work. An error is logged and returned as `Failed`."""
    # An exception belongs to the sequences of that part. It must not end the loop for all others.
    try:
        return action()
    except Exception as error:
        log.warning("sequence_failed", during=what, exc_info=error)
        return Failed(RequestFailedError(f"the request failed during {what}: {error}"))


class RunningBatch:
    """The rows that generate. Row i of the key/value store belongs to `rows[i]`."""

    def __init__(self, runner: ModelRunner, rules: TextRules, max_rows: int) -> None:
        self._runner = runner
        self._rules = rules
        self._kv = runner.new_rows(max_rows)
        self.max_rows = max_rows
        self.rows: list[SequenceState] = []

    @property
    def shape(self) -> Shape:
        return len(self.rows), max((row.work.length for row in self.rows), default=0)

    @property
    def cached_tokens(self) -> int:
        """Tokens whose keys and values are held."""
        return sum(row.last_position for row in self.rows)

    def join(
        self, work: Work, logits: Tensor, version: str, scratch: KVRows, source: int = 0
    ) -> list[Post]:
        """Sample the first token of each choice from logits [1, V].

        Row `source` of `scratch` holds the prompt. If it raises, the caller drops the request.
        """
        choices = [SequenceState(work, index, self._rules) for index in range(work.params.n)]
        if work.params.max_tokens == 0:
            return [(work.sink, row.ended("length", version)) for row in choices]
        tokens = sample(logits.repeat(len(choices), 1), choices)
        posts: list[Post] = []
        for row, token in zip(choices, tokens, strict=True):
            delta = row.accept(token, version)
            posts.append((work.sink, delta))
            if delta.finish_reason is None:
                self._kv.copy_row(scratch, source, len(self.rows), len(work.prompt_ids))
                self.rows.append(row)
        return posts

    def step(self, base_version: str) -> list[Post]:
        """Sample a token for every row. A request with a failed row fails; complete rows leave."""
        posts: list[Post] = []
        ended: set[int] = set()
        failed: dict[Work, Failed] = {}
        for i, (row, token) in enumerate(zip(self.rows, self._next_tokens(), strict=True)):
            accept = partial(_accept, row, token, row.work.version(base_version))
            delta = attempt(accept, "decoding")
            if isinstance(delta, Failed):
                failed.setdefault(row.work, delta)
                continue
            posts.append((row.work.sink, delta))
            if delta.finish_reason is not None:
                ended.add(i)
        posts += [(work.sink, failure) for work, failure in failed.items()]
        self._leave([i for i, row in enumerate(self.rows) if i in ended or row.work in failed])
        return posts

    def drop(self, request_id: str | None) -> list[SequenceState]:
        """Remove a request's rows (None: all rows) and return them."""
        gone = [i for i, row in enumerate(self.rows) if request_id in (None, row.work.request_id)]
        dropped = [self.rows[i] for i in gone]
        self._leave(gone)
        return dropped

    def _next_tokens(self) -> Sequence[TokenLogprob | Failed]:
        count = len(self.rows)
        tokens = attempt(partial(self._sampled, 0, count), "a step of the batch")
        if not isinstance(tokens, Failed):
            return tokens
        # A row may be tried twice: its keys, values and random number are the same again.
        alone = [attempt(partial(self._sampled, i, i + 1), "a step") for i in range(count)]
        return [tokens if isinstance(tokens, Failed) else tokens[0] for tokens in alone]

    def _sampled(self, first: int, end: int) -> list[TokenLogprob]:
        rows = self.rows[first:end]
        logits = self._runner.decode(
            [row.token_ids[-1] for row in rows],
            [row.last_position for row in rows],
            [row.work.adapter for row in rows],
            self._kv,
            first,
        )
        return sample(logits, rows)

    def _leave(self, leaving: list[int]) -> None:
        if not leaving:
            return
        for source, target in closing_moves(len(self.rows), leaving):
            length = self.rows[source].last_position
            self._kv.copy_row(self._kv, source, target, length)
            self.rows[target] = self.rows[source]
        del self.rows[len(self.rows) - len(leaving) :]
        if not self.rows:
            self._kv.shrink()


def _accept(row: SequenceState, token: TokenLogprob | Failed, version: str) -> Delta | Failed:
    return token if isinstance(token, Failed) else row.accept(token, version)
