"""A learner with a LoRA policy: its saved state, and the metrics of a step."""

# Shapes: B rollouts, R response positions.

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from recipes.policy_gradient.knobs import PolicyGradientKnobs, PolicyKnobs
from recipes.policy_gradient.losses import dis_weight, policy_loss
from recipes.policy_gradient.policy import LoraPolicy, Scored
from recipes.policy_gradient.rollouts import Rollout, micro_batches
from reefcommon.metrics import DistillationMetric, StepMetric
from reefcommon.recipe import StepResult

STEP_FILE = "step.json"
Metrics = Mapping[StepMetric, float] | Mapping[DistillationMetric, float]


class AdapterLearner:
    """The part of `reefcommon.recipe.Learner` that all methods share."""

    def __init__(self, knobs: PolicyKnobs, model_path: Path) -> None:
        self.knobs = knobs
        self.policy = LoraPolicy(knobs, model_path)
        self.steps = 0

    def _done(self, metrics: Metrics, action: Literal["step", "skip"] = "step") -> StepResult:
        self.steps += action == "step"
        return StepResult(self.steps, {str(k): value for k, value in metrics.items()}, action)

    def save(self, directory: Path) -> None:
        self.policy.save(directory)
        (directory / STEP_FILE).write_text(json.dumps({"step": self.steps}), encoding="utf-8")

    def load(self, directory: Path, *, actor_from: Path | None = None) -> None:
        self.policy.load(actor_from or directory)
        text = (directory / STEP_FILE).read_text(encoding="utf-8")
        self.steps = int(json.loads(text)["step"])

    def adopt(self, adapter: Path | None) -> None:
        self.policy.adopt(adapter)

    def export(self, directory: Path) -> None:
        self.policy.export(directory)


class PolicyLearner(AdapterLearner):
    """A learner by policy gradient."""

    knobs: PolicyGradientKnobs

    def step_by(self, rollouts: Sequence[Rollout], advantages: Sequence[float]) -> StepResult:
        """Make a step with one advantage for each rollout."""
        # score, correction, loss, backward, update
        knobs = self.knobs
        totals = TokenTotals(sum(len(one.response) for one in rollouts))
        for indices in micro_batches(rollouts, knobs.micro_batch_tokens):
            scored = self.policy.score([rollouts[i] for i in indices])
            advantage_B = scored.mask_BR.new_tensor([advantages[i] for i in indices])
            weight_BR = dis_weight(scored.ratio(), knobs.eps_clip, knobs.eps_clip_high)
            mean = self.policy_loss(scored, weight_BR, advantage_B[:, None])
            loss = mean * (len(indices) / len(rollouts))  # its share of the batch's mean
            loss.backward()  # type: ignore[no-untyped-call]
            totals.add(scored, weight_BR, loss)
        metrics = {**reward_metrics(rollouts), **totals.metrics()}
        metrics["policy_grad_norm"] = self.policy.update()
        return self._done(metrics)

    def policy_loss(self, scored: Scored, weight_BR: Tensor, advantage_BR: Tensor) -> Tensor:
        """Return the mean loss of a forward. Weight and advantage carry no gradient."""
        logp_BR, entropy_BR, mask_BR = scored.logp_BR, scored.entropy_BR, scored.mask_BR
        bonus = self.knobs.entropy_coef
        return policy_loss(logp_BR, entropy_BR, weight_BR, advantage_BR, mask_BR, bonus)


@dataclass(slots=True)
class TokenTotals:
    """Sums over the tokens of a step."""

    response_tokens: int
    loss: float = 0.0
    action_tokens: float = 0.0
    kept_tokens: float = 0.0
    logp_gap: float = 0.0
    entropy: float = 0.0

    def add(self, scored: Scored, weight_BR: Tensor, loss: Tensor) -> None:
        """Add a forward. `loss` is its share of the batch's mean."""
        mask_BR = scored.mask_BR
        gap_BR = (scored.logp_BR.detach() - scored.behaviour_BR).abs()
        self.loss += float(loss.detach())
        self.action_tokens += float(mask_BR.sum())
        self.kept_tokens += float((mask_BR * (weight_BR > 0)).sum())
        self.logp_gap += float((gap_BR * mask_BR).sum())
        self.entropy += float((scored.entropy_BR.detach() * mask_BR).sum())

    def metrics(self) -> dict[StepMetric, float]:
        actions = max(self.action_tokens, 1.0)
        return {
            "policy_loss": self.loss,
            "pg_clipfrac": 1.0 - self.kept_tokens / actions,
            "effective_token_rate": self.kept_tokens / max(self.response_tokens, 1),
            "train_rollout_logprob_abs_diff": self.logp_gap / actions,
            "entropy": self.entropy / actions,
            "response_tokens": float(self.response_tokens),
        }


def reward_metrics(rollouts: Sequence[Rollout]) -> dict[StepMetric, float]:
    rewards = [rollout.reward for rollout in rollouts]
    mean = sum(rewards) / len(rewards)
    return {
        "reward_mean": mean,
        "reward_min": min(rewards),
        "reward_max": max(rewards),
        "reward_std": (sum((x - mean) ** 2 for x in rewards) / len(rewards)) ** 0.5,
        "batch_size": float(len(rewards)),
    }
