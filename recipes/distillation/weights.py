"""Importance weights against staleness, and the aggregation of a batch."""

#     ratio_t  = exp(clamp(log p(y_t) - log q(y_t), +-20))      q: the weights that sampled y
#     token    w_t = min(ratio_t, cap)
#     sequence w   = mean over the trained tokens of min(ratio_t, cap)
#     loss     = mean over units of  weight * mean over trained tokens of w_t d_t
#
# Shapes: B rollouts, R response positions.

import torch
from torch import Tensor

from recipes.distillation.knobs import Importance

_MOST = 20.0  # exp(20) is finite in every dtype but half


def importance(
    logp_BR: Tensor, behaviour_BR: Tensor, mask_BR: Tensor, kind: Importance, cap: float
) -> Tensor:
    """Return the weight of each token [B, R], without a gradient."""
    if kind == "none":
        return torch.ones_like(logp_BR)
    gap_BR = (logp_BR.detach() - behaviour_BR).clamp(-_MOST, _MOST)
    capped_BR = gap_BR.exp().clamp(max=cap)
    if kind == "token":
        return capped_BR
    return masked_mean(capped_BR, mask_BR)[:, None].expand_as(capped_BR)


def masked_mean(value_BR: Tensor, mask_BR: Tensor) -> Tensor:
    """Return the mean over each rollout's trained tokens [B]; 0 if there is none."""
    return (value_BR * mask_BR).sum(dim=1) / mask_BR.sum(dim=1).clamp(min=1.0)
