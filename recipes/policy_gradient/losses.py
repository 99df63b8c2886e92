"""Losses over padded batches. Shapes: B rollouts, R response positions; `mask_BR` is 1 on action tokens, 0 on observations and padding."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def dis_weight(ratio: "Tensor", eps_low: float, eps_high: float) -> "Tensor":
    """Double-sided hard mask on the importance ratio: r where 1 - eps_low < r < 1 + eps_high (both strict), else 0. No gradient."""
    ratio = ratio.detach()
    inside = (ratio > 1.0 - eps_low) & (ratio < 1.0 + eps_high)
    return ratio * inside


def sample_mean(per_token_BR: "Tensor", mask_BR: "Tensor") -> "Tensor":
    """Mean over each rollout's action tokens, then over rollouts: a long rollout weighs as much as a short one. Masked-out
    tokens stay in the denominator, so that the hard mask shrinks a step instead of re-weighting the tokens that are left."""
    per_rollout_B = (per_token_BR * mask_BR).sum(dim=1) / mask_BR.sum(dim=1).clamp(min=1.0)
    return per_rollout_B.mean()


def policy_gradient_loss(
    logp_BR: "Tensor", weight_BR: "Tensor", advantage_BR: "Tensor", mask_BR: "Tensor"
) -> "Tensor":
    """- weight * A * log pi, aggregated by `sample_mean`. The weight and the advantage carry no gradient."""
    return sample_mean(-weight_BR.detach() * advantage_BR.detach() * logp_BR, mask_BR)


def value_loss(value_N: "Tensor", return_N: "Tensor", weight_N: "Tensor") -> "Tensor":
    """Squared error over N action tokens. With weights 1 / (rollouts * actions of the rollout) it is aggregated as `sample_mean` is."""
    return (weight_N * (value_N - return_N.detach()) ** 2).sum()
