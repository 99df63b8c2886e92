"""Losses over padded batches. `mask_BR` is 1 on action tokens, 0 on observations and padding."""

# Shapes: B rollouts, R response positions, N action tokens of all rollouts.

from torch import Tensor


def dis_weight(ratio_BR: Tensor, eps_low: float, eps_high: float) -> Tensor:
    """Mask the importance ratio: r if 1 - eps_low < r < 1 + eps_high, else 0. No gradient."""
    ratio_BR = ratio_BR.detach()
    inside = (ratio_BR > 1.0 - eps_low) & (ratio_BR < 1.0 + eps_high)
    return ratio_BR.where(inside, 0.0)  # not a product: a ratio may be infinite


def sample_mean(per_token_BR: Tensor, mask_BR: Tensor) -> Tensor:
    """Return the mean over each rollout's action tokens, then over rollouts."""
    # A long rollout weighs as much as a short rollout. Tokens that the hard mask removes stay in
    # the denominator: the mask shrinks a step and does not re-weight the tokens that are left.
    per_rollout_B = (per_token_BR * mask_BR).sum(dim=1) / mask_BR.sum(dim=1).clamp(min=1.0)
    return per_rollout_B.mean()


def policy_loss(
    logp_BR: Tensor,
    entropy_BR: Tensor,
    weight_BR: Tensor,
    advantage_BR: Tensor,
    mask_BR: Tensor,
    entropy_coef: float = 0.0,
) -> Tensor:
    """Return the `sample_mean` of - weight * A * log pi - entropy_coef * entropy.

    Weight and advantage carry no gradient.
    """
    per_token_BR = -weight_BR.detach() * advantage_BR.detach() * logp_BR
    if entropy_coef:
        per_token_BR = per_token_BR - entropy_coef * entropy_BR
    return sample_mean(per_token_BR, mask_BR)
