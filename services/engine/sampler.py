"""From logits to one token per row, with the log-probability of what was drawn."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from services.engine.domain.outputs import TokenLogprob
from services.engine.domain.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Row:
    """What the sampler needs to know of one row."""

    params: SamplingParams
    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    """Sampled so far."""
    draws: random.Random
    """The row's own source of randomness: one number per token, so batch mates cannot shift it."""
    banned: frozenset[int]


@torch.inference_mode()
def sample(logits: Tensor, rows: Sequence[Row]) -> list[TokenLogprob]:
    """One token per row of logits [B, V] (changed in place). Draws by inverting each row's cumulative distribution."""
    _adjust(logits, rows)
    temperatures = [1.0 if row.params.greedy else row.params.temperature for row in rows]
    if any(t != 1.0 for t in temperatures):
        logits = logits / torch.tensor(temperatures).unsqueeze(1)
    logp = torch.log_softmax(logits, dim=-1)
    ids = _draw(logp, rows)
    chosen = logp.gather(1, torch.tensor(ids).unsqueeze(1)).squeeze(1).tolist()
    return [
        _described(logp[i], token, logprob, row.params.logprobs)
        for i, (token, logprob, row) in enumerate(zip(ids, chosen, rows, strict=True))
    ]


@torch.inference_mode()
def score_prompt(logits: Tensor, next_ids: Sequence[int], alternatives: int) -> list[TokenLogprob]:
    """The log-probability (temperature 1) of each next id given logits [T, V]."""
    logp = torch.log_softmax(logits, dim=-1)
    chosen = logp.gather(1, torch.tensor(next_ids).unsqueeze(1)).squeeze(1).tolist()
    return [_described(logp[i], token, logprob, alternatives) for i, (token, logprob) in enumerate(zip(next_ids, chosen, strict=True))]


def _adjust(logits: Tensor, rows: Sequence[Row]) -> None:
    for i, row in enumerate(rows):
        if row.params.penalised:
            _penalise(logits[i], row)
        if row.banned:
            logits[i, list(row.banned)] = -torch.inf


def _penalise(logits: Tensor, row: Row) -> None:
    """logits [V]. Repetition covers prompt and output, the other two the output alone (as in vLLM)."""
    if row.params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*row.prompt_ids, *row.token_ids}))
        values = logits[seen]
        penalty = row.params.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if row.token_ids:
        counts = torch.bincount(torch.tensor(row.token_ids), minlength=logits.shape[0])
        logits -= row.params.frequency_penalty * counts + row.params.presence_penalty * (counts > 0)


def _draw(logp: Tensor, rows: Sequence[Row]) -> list[int]:
    if all(row.params.greedy for row in rows):
        return [int(token) for token in logp.argmax(dim=-1).tolist()]
    probabilities = logp.exp()
    for i, row in enumerate(rows):
        if row.params.filtered:
            probabilities[i] *= _kept(probabilities[i], row.params)
    # Double precision: over 49k tokens a float32 running sum loses the small ones.
    cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
    uniform = torch.tensor([row.draws.random() for row in rows], dtype=torch.float64)
    targets = uniform.unsqueeze(1) * cumulative[:, -1:]
    # right=True never lands on a token of probability 0.
    drawn = torch.searchsorted(cumulative, targets, right=True).squeeze(1).clamp(max=logp.shape[1] - 1).tolist()
    best = logp.argmax(dim=-1).tolist() if any(row.params.greedy for row in rows) else drawn
    return [int(best[i] if row.params.greedy else drawn[i]) for i, row in enumerate(rows)]


def _kept(probabilities: Tensor, params: SamplingParams) -> Tensor:
    """Boolean [V]: top-k first, then the smallest set within it that reaches top-p (of its renormalised mass)."""
    count = params.top_k if 0 < params.top_k < probabilities.shape[0] else probabilities.shape[0]
    ordered, order = probabilities.topk(count, sorted=True)
    if params.top_p < 1.0:
        before = ordered.cumsum(0) - ordered
        inside = before < params.top_p * ordered.sum()
        inside[0] = True
        order = order[inside]
    kept = torch.zeros_like(probabilities, dtype=torch.bool)
    kept[order] = True
    return kept


def _described(logp: Tensor, token: int, logprob: float, alternatives: int | None) -> TokenLogprob:
    if alternatives is None:
        return TokenLogprob(token, logprob)
    rank = int((logp > logp[token]).sum()) + 1
    if alternatives == 0:
        return TokenLogprob(token, logprob, rank)
    values, ids = logp.topk(min(alternatives, logp.shape[0]))
    return TokenLogprob(token, logprob, rank, tuple(zip(ids.tolist(), values.tolist(), strict=True)))
