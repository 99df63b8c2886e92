"""The part of a policy-gradient step that all recipes share: forward and backward in micro-batches, metrics, saved state."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.policy_gradient.policy import LoraPolicy, Scored
from recipes.policy_gradient.rollouts import Rollout, micro_batches

if TYPE_CHECKING:
    from torch import Tensor

STEP = "step.json"

Advantages = Callable[[Scored, Sequence[int]], "Tensor"]
"""(what one forward said, indices of its rollouts in the batch) -> advantages [B, R]."""
Weight = Callable[["Tensor"], "Tensor"]
"""Importance ratio [B, R] -> the weight that multiplies each token's gradient."""
Loss = Callable[[Scored, "Tensor", "Tensor"], "Tensor"]
"""(forward, weights [B, R], advantages [B, R]) -> scalar, a mean over the rollouts of the forward."""


@dataclass(slots=True)
class Tally:
    """Sums over a step's tokens."""

    loss: float = 0.0
    response_tokens: int = 0
    action_tokens: float = 0.0
    kept_tokens: float = 0.0
    logp_gap: float = 0.0
    entropy: float = 0.0

    def add(self, scored: Scored, weight_BR: "Tensor", loss: float) -> None:
        """Count one forward; `loss` is its share of the batch's mean."""
        mask = scored.mask_BR
        self.loss += loss
        self.action_tokens += float(mask.sum())
        self.kept_tokens += float((mask * (weight_BR > 0)).sum())
        self.logp_gap += float(((scored.logp_BR.detach() - scored.behaviour_BR).abs() * mask).sum())
        self.entropy += float((scored.entropy_BR.detach() * mask).sum())

    def metrics(self) -> dict[str, float]:
        """Shares and means by their usual names."""
        actions = max(self.action_tokens, 1.0)
        return {
            "policy_loss": self.loss,
            "pg_clipfrac": 1.0 - self.kept_tokens / actions,
            "effective_token_rate": self.kept_tokens / max(self.response_tokens, 1),
            "train_rollout_logprob_abs_diff": self.logp_gap / actions,
            "entropy": self.entropy / actions,
            "response_tokens": float(self.response_tokens),
        }


def accumulate(
    policy: LoraPolicy,
    rollouts: Sequence[Rollout],
    *,
    advantages: Advantages,
    weight: Weight,
    loss: Loss,
    max_tokens: int,
    train: bool,
) -> Tally:
    """Forward, and backward where `train`, over the whole batch; the gradient equals that of one large forward."""
    import torch

    tally = Tally(response_tokens=sum(len(r.response) for r in rollouts))
    for group in micro_batches(rollouts, max_tokens):
        with torch.set_grad_enabled(train):
            scored = policy.score([rollouts[i] for i in group])
            weight_BR = weight((scored.logp_BR - scored.behaviour_BR).detach().exp())
            share = loss(scored, weight_BR, advantages(scored, group)) * (
                len(group) / len(rollouts)
            )
        if train:
            share.backward()  # type: ignore[no-untyped-call]
        tally.add(scored, weight_BR, float(share.detach()))
    return tally


def reward_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Mean and spread of the batch's rewards."""
    rewards = [r.reward for r in rollouts]
    mean = sum(rewards) / len(rewards)
    return {
        "reward_mean": mean,
        "reward_min": min(rewards),
        "reward_max": max(rewards),
        "reward_std": (sum((x - mean) ** 2 for x in rewards) / len(rewards)) ** 0.5,
        "batch_size": float(len(rewards)),
    }


def write_step(directory: Path, step: int) -> None:
    """Keep the number of optimizer steps beside the tensors."""
    (directory / STEP).write_text(json.dumps({"step": step}), encoding="utf-8")


def read_step(directory: Path) -> int:
    """The number that `write_step` kept."""
    return int(json.loads((directory / STEP).read_text(encoding="utf-8"))["step"])
