"""Trained positions of a padded batch, and values back at their places."""

# Shapes: B rollouts, R response positions, N trained positions, H hidden units.

from dataclasses import dataclass

import torch
from torch import Tensor

from recipes.policy_gradient.forward import Padded


@dataclass(frozen=True, slots=True)
class Positions:
    """The hidden state before each trained token, the token, and its temperature [N, 1]."""

    hidden_NH: Tensor
    token_N: Tensor
    temperature_N1: Tensor


def at_trained(padded: Padded, hidden_BRH: Tensor) -> Positions:
    """Return the positions with a loss, in the order of the rollouts."""
    trained_BR = padded.mask_BR.bool()
    temperature_BR = padded.temperature_B11[:, :, 0].expand_as(padded.mask_BR)
    return Positions(
        hidden_BRH[trained_BR], padded.response[trained_BR], temperature_BR[trained_BR][:, None]
    )


def in_place(value_N: Tensor, mask_BR: Tensor) -> Tensor:
    """Return the values at their trained positions [B, R], 0 elsewhere. Keeps the gradient."""
    return torch.zeros_like(mask_BR).masked_scatter(mask_BR.bool(), value_N)
