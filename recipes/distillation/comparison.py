"""From hidden states to divergences: a few positions at a time."""

# The distributions of a batch, [B, R, V] for student and teacher, would not fit into memory: a
# vocabulary of 150,000 and 8,000 positions are 5 GB for each. So the output layer runs on a chunk
# of positions, and again in the backward pass. Only positions with a loss are looked at.
#
# Shapes: N trained positions, H hidden units, V vocabulary, K kept ids.

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from recipes.distillation.divergences import divergence, restrict, sampled_reverse_kl
from recipes.distillation.knobs import DistillationKnobs
from recipes.distillation.placement import Positions

Head = Callable[[Tensor], Tensor]
"""Hidden states [N, H] -> logits [N, V]."""


@dataclass(frozen=True, slots=True)
class Compared:
    """Student and teacher at each trained position. Only `divergence_N` carries a gradient.

    `logp_N` and `teacher_N` are log-probabilities of the sampled tokens.
    """

    divergence_N: Tensor
    logp_N: Tensor
    teacher_N: Tensor
    entropy_N: Tensor


def compare(
    at: Positions, teacher_NH: Tensor, student: Head, teacher: Head, knobs: DistillationKnobs
) -> Compared:
    """Compare student and teacher, `chunk_positions` at a time."""

    def chunk(s_NH: Tensor, t_NH: Tensor, token_N: Tensor, temp_N1: Tensor) -> tuple[Tensor, ...]:
        p_NV = torch.log_softmax(student(s_NH) / temp_N1, dim=-1)
        with torch.no_grad():
            t_NV = torch.log_softmax(teacher(t_NH) / temp_N1, dim=-1)
            entropy_N = -(p_NV.exp() * p_NV).sum(-1)
        p_N, t_N = of_token(p_NV, token_N), of_token(t_NV, token_N)
        if knobs.divergence == "sampled_reverse_kl":
            return sampled_reverse_kl(p_N, t_N), p_N.detach(), t_N, entropy_N
        if knobs.top_k:
            ids_NK = kept_ids(p_NV if knobs.top_k_from == "student" else t_NV, knobs.top_k)
            p_NV, t_NV = (restrict(logp, ids_NK, knobs.rest) for logp in (p_NV, t_NV))
        apart_N = divergence(p_NV, t_NV, knobs.divergence, knobs.jsd_beta)
        return apart_N, p_N.detach(), t_N, entropy_N

    inputs = (at.hidden_NH, teacher_NH, at.token_N, at.temperature_N1)
    return Compared(*_in_chunks(chunk, inputs, knobs.chunk_positions))


def log_likelihood(at: Positions, head: Head, chunk_positions: int) -> Tensor:
    """Return the log-probability [N] of each trained token, `chunk_positions` at a time."""

    def chunk(hidden_NH: Tensor, token_N: Tensor, temp_N1: Tensor) -> tuple[Tensor, ...]:
        return (of_token(torch.log_softmax(head(hidden_NH) / temp_N1, dim=-1), token_N),)

    inputs = (at.hidden_NH, at.token_N, at.temperature_N1)
    return _in_chunks(chunk, inputs, chunk_positions)[0]


def of_token(logp_NV: Tensor, token_N: Tensor) -> Tensor:
    return logp_NV.gather(-1, token_N[:, None]).squeeze(-1)


def kept_ids(logp_NV: Tensor, k: int) -> Tensor:
    """Return the `k` most likely ids at each position [N, K]; all if there are fewer."""
    return logp_NV.detach().topk(min(k, logp_NV.shape[-1]), dim=-1).indices


def _in_chunks(
    function: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor], size: int
) -> tuple[Tensor, ...]:
    columns = zip(*(torch.split(tensor, size) for tensor in inputs), strict=True)
    # Nothing is drawn in a chunk: the state of the random numbers need not be kept.
    parts = [
        checkpoint(function, *rows, use_reentrant=False, preserve_rng_state=False)
        for rows in columns
    ]
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))
