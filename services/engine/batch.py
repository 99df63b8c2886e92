"""The running batch: rows of choices, one token each per step."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from services.engine.domain.batching import closing_moves
from services.engine.domain.outputs import Delta, Failed, TokenLogprob
from services.engine.domain.sequence import SequenceState
from services.engine.runner import ModelRunner
from services.engine.sampler import Row, sample
from services.engine.work import Post, Work


@dataclass(slots=True, eq=False)
class Running:
    """A row: a choice and the request it belongs to."""

    work: Work
    state: SequenceState


class RunningBatch:
    """Row i of the key/value store belongs to the i-th entry, always."""

    def __init__(
        self,
        runner: ModelRunner,
        *,
        eos_ids: frozenset[int],
        max_length: int,
        decode: Callable[[list[int]], str],
    ) -> None:
        self._runner = runner
        self._eos_ids = eos_ids
        self._max_length = max_length
        self._decode = decode
        self.rows: list[Running] = []

    @property
    def cached_tokens(self) -> int:
        """Tokens whose keys and values are held."""
        return sum(row.state.last_position for row in self.rows)

    def join(self, work: Work, logits: Tensor, version: str, source: int = 0) -> list[Post]:
        """Sample the first token of every choice of a request whose prompt was read into scratch row `source`; logits [1, V]."""
        choices = [Running(work, self._state(work, index)) for index in range(work.params.n)]
        if work.params.max_tokens == 0:
            return [(work.sink, row.state.ended("length", version)) for row in choices]
        tokens = sample(
            logits.repeat(len(choices), 1), [_sampler_row(row.state) for row in choices]
        )
        if any(_lost(token) for token in tokens):
            return [_without_distribution(work)]
        posts: list[Post] = []
        for row, token in zip(choices, tokens, strict=True):
            delta = row.state.accept(token, version)
            posts.append((work.sink, delta))
            if delta.finish_reason is None:
                self._runner.join(len(self.rows), len(work.prompt_ids), source)
                self.rows.append(row)
        return posts

    def step(self, base_version: str) -> list[Post]:
        """One token for every row; complete rows leave, and so do requests whose weights give no distribution: they fail alone."""
        states = [row.state for row in self.rows]
        logits = self._runner.decode(
            [state.token_ids[-1] for state in states],
            [state.last_position for state in states],
            [row.work.adapter for row in self.rows],
        )
        tokens = sample(logits, [_sampler_row(state) for state in states])
        lost = {row.work for row, token in zip(self.rows, tokens, strict=True) if _lost(token)}
        posts: list[Post] = [_without_distribution(work) for work in lost]
        leaving = []
        for i, (row, token) in enumerate(zip(self.rows, tokens, strict=True)):
            if row.work in lost:
                leaving.append(i)
                continue
            delta = _accept(row, token, base_version)
            posts.append((row.work.sink, delta))
            if delta.finish_reason is not None:
                leaving.append(i)
        self._leave(leaving)
        return posts

    def drop(self, request_id: str | None) -> list[Running]:
        """Take a request's rows out (all rows for None)."""
        leaving = [
            i for i, row in enumerate(self.rows) if request_id in (None, row.work.request_id)
        ]
        dropped = [self.rows[i] for i in leaving]
        self._leave(leaving)
        return dropped

    def _leave(self, leaving: list[int]) -> None:
        if not leaving:
            return
        for source, target in closing_moves(len(self.rows), leaving):
            self._runner.move(source, target, self.rows[source].state.last_position)
            self.rows[target] = self.rows[source]
        del self.rows[len(self.rows) - len(leaving) :]
        if not self.rows:
            self._runner.idle()

    def _state(self, work: Work, index: int) -> SequenceState:
        return SequenceState(
            index=index,
            prompt_ids=work.prompt_ids,
            params=work.params,
            eos_ids=self._eos_ids,
            max_length=self._max_length,
            decode=self._decode,
            seed=work.seed,
        )


def version_of(work: Work, base_version: str) -> str:
    """What a request's tokens are tagged with: the base weights' version, or its adapter's name, and both where the base weights below the
    adapter were replaced since it was loaded."""
    if work.adapter is None:
        return base_version
    return (
        work.adapter.name
        if base_version == work.adapter.base_version
        else f"{work.adapter.name}+{base_version}"
    )


def _lost(token: TokenLogprob) -> bool:
    return math.isnan(token.logprob)


def _without_distribution(work: Work) -> Post:
    served = work.adapter.name if work.adapter is not None else "the base model"
    return work.sink, Failed(
        RuntimeError(
            f"the weights of {served} give no probabilities: they are not finite, or overflow"
        )
    )


def _accept(row: Running, token: TokenLogprob, base_version: str) -> Delta:
    return row.state.accept(token, version_of(row.work, base_version))


def _sampler_row(state: SequenceState) -> Row:
    return Row(state.params, state.prompt_ids, state.token_ids, state.draws, state.banned)
