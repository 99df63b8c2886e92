"""Divergences of two distributions, in nats for each position. Inputs are log-probabilities."""

#     forward KL   KL(t||p) = sum t (log t - log p)           covers all that the teacher does
#     reverse KL   KL(p||t) = sum p (log p - log t)           keeps to what the teacher does most
#     JSD_b        b KL(t||m) + (1 - b) KL(p||m),  m = b t + (1 - b) p
#     sampled      g = log p(y) - log t(y), y ~ p: an unbiased estimate of the reverse KL; its
#                  gradient is g d log p(y)
#
# Shapes: N positions, V vocabulary, K kept ids. p is the student, t the teacher.

from math import log

import torch
from torch import Tensor

from recipes.distillation.knobs import Divergence, Rest

# exp(-1e-7) is the largest float32 below 1 that leaves a tail: log(0) has no gradient.
_FULL = -1e-7


def forward_kl(student_NV: Tensor, teacher_NV: Tensor) -> Tensor:
    return _kl(teacher_NV, student_NV)


def reverse_kl(student_NV: Tensor, teacher_NV: Tensor) -> Tensor:
    return _kl(student_NV, teacher_NV)


def jsd(student_NV: Tensor, teacher_NV: Tensor, beta: float) -> Tensor:
    """Return the generalised Jensen-Shannon divergence. 0 < beta < 1, the teacher's share."""
    mixed_NV = torch.logaddexp(teacher_NV + log(beta), student_NV + log(1.0 - beta))
    return beta * _kl(teacher_NV, mixed_NV) + (1.0 - beta) * _kl(student_NV, mixed_NV)


def sampled_reverse_kl(student_N: Tensor, teacher_N: Tensor) -> Tensor:
    """Return log p(y) - log t(y) of sampled tokens, with the gradient of the reverse KL."""
    gap_N = (student_N - teacher_N).detach()
    return gap_N + gap_N * (student_N - student_N.detach())


def divergence(
    student_NV: Tensor, teacher_NV: Tensor, kind: Divergence, beta: float = 0.5
) -> Tensor:
    """Return a divergence over whole distributions [N, V], or restricted ones."""
    match kind:
        case "forward_kl":
            return forward_kl(student_NV, teacher_NV)
        case "reverse_kl":
            return reverse_kl(student_NV, teacher_NV)
        case "jsd":
            return jsd(student_NV, teacher_NV, beta)
    raise ValueError(f"{kind} is no divergence of distributions")


def restrict(logp_NV: Tensor, ids_NK: Tensor, rest: Rest) -> Tensor:
    """Return log-probabilities of the kept ids: [N, K + 1] with a tail, else [N, K].

    `tail` puts all other ids into a last bucket, `renormalized` drops them.
    """
    kept_NK = logp_NV.gather(-1, ids_NK)
    if rest == "renormalized":
        return torch.log_softmax(kept_NK, dim=-1)
    mass_N1 = torch.logsumexp(kept_NK, dim=-1, keepdim=True).clamp(max=_FULL)
    return torch.cat((kept_NK, torch.log(-torch.expm1(mass_N1))), dim=-1)


def _kl(first_NV: Tensor, second_NV: Tensor) -> Tensor:
    return (first_NV.exp() * (first_NV - second_NV)).sum(dim=-1)
