"""A token per row out of logits, with its log-probability."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from services.engine.domain.outputs import TokenLogprob
from services.engine.domain.sampling import SamplingParams
from services.engine.domain.sequence import SequenceState

_BLOCK = 256


@torch.inference_mode()
def sample(logits: Tensor, rows: Sequence[SequenceState]) -> list[TokenLogprob]:
    """Draw a token per row of logits [B, V], by inversion of the cumulative distribution.

    A row with NaN or overflow gets some token with the log-probability NaN.
    """
    logits = _adjust_logits(logits, rows)
    temperatures = [1.0 if row.params.greedy else row.params.temperature for row in rows]
    if any(t != 1.0 for t in temperatures):
        logits = logits / torch.tensor(temperatures).unsqueeze(1)
    norm = logits.logsumexp(dim=-1, keepdim=True)
    sound = norm.isfinite()
    if bool(sound.all()):
        ids = _draw(logits, norm, rows)
    else:
        logits = logits.where(sound, 0.0)
        ids = _draw(logits, norm.where(sound, 0.0), rows)
        norm = norm.where(sound, torch.nan)
    chosen = logits.gather(1, torch.tensor(ids).unsqueeze(1))
    logprobs = (chosen - norm).squeeze(1).tolist()
    if all(row.params.logprobs is None for row in rows):
        return [TokenLogprob(token, logprob) for token, logprob in zip(ids, logprobs, strict=True)]
    ranks = _ranks(logits, chosen)
    return [
        _token_logprob(logits[i], norm[i], ids[i], logprobs[i], ranks[i], row.params.logprobs)
        for i, row in enumerate(rows)
    ]


@torch.inference_mode()
def score_prompt(logits: Tensor, next_ids: Sequence[int], alternatives: int) -> list[TokenLogprob]:
    """The log-probability (temperature 1) of each next id given logits [T, V].

    Raises RuntimeError if logits are not finite.
    """
    norm = logits.logsumexp(dim=-1, keepdim=True)
    if not bool(norm.isfinite().all()):
        raise RuntimeError("the weights give no probabilities: they are not finite, or overflow")
    chosen = logits.gather(1, torch.tensor(next_ids).unsqueeze(1))
    logprobs = (chosen - norm).squeeze(1).tolist()
    ranks = _ranks(logits, chosen)
    return [
        _token_logprob(logits[i], norm[i], token, logprobs[i], ranks[i], alternatives)
        for i, token in enumerate(next_ids)
    ]


def _ranks(logits: Tensor, chosen: Tensor) -> list[int]:
    # 1 for the likeliest; logits [B, V], chosen [B, 1]. numpy counts booleans in half the time.
    return [int(above) + 1 for above in np.count_nonzero((logits > chosen).numpy(), axis=1)]


def _adjust_logits(logits: Tensor, rows: Sequence[SequenceState]) -> Tensor:
    # In vLLM's order: mask, bias, penalties, bans. A copy if anything changes: a step may be
    # repeated.
    if not any(row.params.adjusted or row.banned for row in rows):
        return logits
    logits = logits.clone()
    for i, row in enumerate(rows):
        if row.params.allowed_token_ids:
            allowed = list(row.params.allowed_token_ids)
            values = logits[i, allowed]
            logits[i] = -torch.inf
            logits[i, allowed] = values
        if row.params.logit_bias:
            tokens, biases = zip(*row.params.logit_bias, strict=True)
            logits[i, list(tokens)] += torch.tensor(biases)
        if row.params.penalised:
            _penalise(logits[i], row)
        if row.banned:
            logits[i, list(row.banned)] = -torch.inf
    return logits


def _penalise(logits: Tensor, row: SequenceState) -> None:
    # logits [V]. As in vLLM: repetition covers prompt and output, the others only the output.
    if row.params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted({*row.work.prompt_ids, *row.token_ids}))
        values = logits[seen]
        penalty = row.params.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if row.token_ids:
        counts = torch.bincount(torch.tensor(row.token_ids), minlength=logits.shape[0])
        logits -= row.params.frequency_penalty * counts + row.params.presence_penalty * (counts > 0)


def _draw(logits: Tensor, norm: Tensor, rows: Sequence[SequenceState]) -> list[int]:
    # logits [B, V], norm [B, 1].
    if all(row.params.greedy for row in rows):
        return [int(token) for token in logits.argmax(dim=-1).tolist()]
    probabilities = (logits - norm).exp_()
    for i, row in enumerate(rows):
        if row.params.filtered:
            probabilities[i] *= _allowed_tokens(probabilities[i], row.params)
    uniform = torch.tensor([row.draw for row in rows], dtype=torch.float64)
    drawn = _invert_cdf(probabilities, uniform.unsqueeze(1)).tolist()
    best = logits.argmax(dim=-1).tolist() if any(row.params.greedy for row in rows) else drawn
    return [int(best[i] if row.params.greedy else drawn[i]) for i, row in enumerate(rows)]


def _invert_cdf(probabilities: Tensor, uniform: Tensor) -> Tensor:
    """The id [B] at which the distribution [B, V] passes uniform [B, 1] of its total."""
    # In two levels, first the block, then the place in it: a single running sum over 49,000 tokens
    # costs more than the rest of the draw. Double precision: a float32 running sum loses the small
    # probabilities.
    padded = torch.nn.functional.pad(probabilities, (0, -probabilities.shape[1] % _BLOCK)).view(
        len(probabilities), -1, _BLOCK
    )
    ends = padded.sum(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    target = uniform * (1 - 1e-12) * ends[:, -1:]  # below the total, whatever rounding does
    block = torch.searchsorted(ends, target, right=True)
    chosen = padded.gather(1, block.unsqueeze(2).expand(-1, -1, _BLOCK)).squeeze(1)
    inside = chosen.cumsum(dim=-1, dtype=torch.float64)
    before = torch.where(block > 0, ends.gather(1, (block - 1).clamp_(min=0)), 0.0)
    # right=True never lands on a token of probability 0. The bounds are for a target that rounding
    # put just outside the block.
    place = torch.searchsorted(
        inside, (target - before).clamp_(min=0).minimum(inside[:, -1:] * (1 - 1e-12)), right=True
    )
    return (block * _BLOCK + place).squeeze(1)


def _allowed_tokens(probabilities: Tensor, params: SamplingParams) -> Tensor:
    # Boolean [V]: min-p and top-k, then the smallest set within them that reaches top-p of their
    # mass.
    if params.min_p > 0.0:
        likely = probabilities >= params.min_p * probabilities.max()
        probabilities = probabilities.where(likely, 0.0)
    count = params.top_k if 0 < params.top_k < probabilities.shape[0] else probabilities.shape[0]
    ordered, order = probabilities.topk(count, sorted=True)
    if params.top_p < 1.0:
        before = ordered.cumsum(0) - ordered
        inside = before < params.top_p * ordered.sum()
        inside[0] = True
        order = order[inside]
    kept = torch.zeros_like(probabilities, dtype=torch.bool)
    kept[order] = True
    # A token that min-p removed has probability 0 here and may still be in `order`.
    return kept & (probabilities > 0)


def _token_logprob(
    logits: Tensor, norm: Tensor, token: int, logprob: float, rank: int, alternatives: int | None
) -> TokenLogprob:
    # logits [V], norm [1].
    if alternatives is None:
        return TokenLogprob(token, logprob)
    if alternatives == 0:
        return TokenLogprob(token, logprob, rank)
    values, ids = logits.topk(min(alternatives, logits.shape[0]))
    found = zip(ids.tolist(), (values - norm).tolist(), strict=True)
    # A masked token is no alternative, and JSON has no number for its log-probability.
    return TokenLogprob(token, logprob, rank, tuple(x for x in found if x[1] != -math.inf))
