"""The mask of constrained decoding, repeated by the policy."""

# Shapes: B rollouts, R response positions, V vocabulary.

from collections.abc import Sequence

import torch
from torch import Tensor

from recipes.policy_gradient.rollouts import Rollout

# Finite: minus infinity times its probability 0 would be NaN in the entropy.
_MASKED = -1e30


def mask_forbidden(logits_BRV: Tensor, rollouts: Sequence[Rollout]) -> Tensor:
    """Return logits in which ids that the engine could not sample have probability 0."""
    if not any(r.allowed for r in rollouts):
        return logits_BRV
    forbidden = logits_BRV.new_zeros(len(rollouts), 1, logits_BRV.shape[-1], dtype=torch.bool)
    for row, r in enumerate(rollouts):
        if r.allowed:
            forbidden[row] = True
            forbidden[row, 0, list(r.allowed)] = False
    return logits_BRV.masked_fill(forbidden, _MASKED)
