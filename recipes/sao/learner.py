"""The step of SAO: score, values, credit, correction, loss, backward, updates."""

# Shapes: B rollouts, R response positions, H hidden units, N action tokens of the whole batch.

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from recipes.policy_gradient.critic import Critic
from recipes.policy_gradient.learner import PolicyLearner, TokenTotals, reward_metrics
from recipes.policy_gradient.losses import dis_weight
from recipes.policy_gradient.returns import (
    explained_variance,
    length_adaptive_lambda,
    skip_observation_gae,
)
from recipes.policy_gradient.rollouts import Rollout, micro_batches, rollout
from recipes.sao.knobs import Knobs
from reefcommon.events import Unit
from reefcommon.metrics import StepMetric
from reefcommon.recipe import StepResult


def credit(
    mask: Sequence[int], values: Sequence[float], reward: float, knobs: Knobs
) -> tuple[list[float], list[float]]:
    """Return (advantages for the actor, returns for the critic), 0 on observations."""
    adaptive = knobs.length_adaptive_lambda
    lam = length_adaptive_lambda(sum(mask), knobs.lambda_alpha) if adaptive else knobs.lambd
    advantages, _ = skip_observation_gae(mask, values, reward, gamma=knobs.gamma, lam=lam)
    _, returns = skip_observation_gae(
        mask, values, reward, gamma=knobs.gamma, lam=knobs.critic_lambda
    )
    return advantages, returns


def correction(ratio_BR: Tensor, knobs: Knobs) -> Tensor:
    """Return the weight of each token's gradient, given the importance ratio."""
    match knobs.correction:
        case "none":
            return torch.ones_like(ratio_BR)
        case "ratio":
            return ratio_BR.detach()
    return dis_weight(ratio_BR, knobs.eps_clip, knobs.eps_clip_high)


def credit_batch(group: Sequence[Rollout], value_BR: Tensor, knobs: Knobs) -> tuple[Tensor, Tensor]:
    """Return advantages and returns [B, R], 0 on observations and padding."""
    advantage_BR, return_BR = torch.zeros_like(value_BR), torch.zeros_like(value_BR)
    for row, (one, padded) in enumerate(zip(group, value_BR.tolist(), strict=True)):
        length = len(one.response)
        values = padded[:length]
        advantages, returns = credit(one.mask, values, one.reward, knobs)
        advantage_BR[row, :length] = value_BR.new_tensor(advantages)
        return_BR[row, :length] = value_BR.new_tensor(returns)
    return advantage_BR, return_BR


class SAOLearner(PolicyLearner):
    """Actor and critic; see `reefcommon.recipe.Learner`."""

    knobs: Knobs

    def __init__(self, knobs: Knobs, model_path: Path) -> None:
        super().__init__(knobs, model_path)
        self.critic = Critic(
            self.policy.hidden_size,
            width=knobs.critic_width,
            learning_rate=knobs.critic_lr,
            seed=knobs.seed,
            device=self.policy.compute.device,
        )

    def step(self, batch: Sequence[Unit]) -> StepResult:
        knobs = self.knobs
        rollouts = [rollout(sample, knobs.score_range) for sample in batch]
        train = self.steps >= knobs.critic_warmup_steps
        totals = TokenTotals(sum(len(one.response) for one in rollouts))
        hiddens, values, returns, weights = [], [], [], []

        for indices in micro_batches(rollouts, knobs.micro_batch_tokens):
            group = [rollouts[i] for i in indices]
            with torch.set_grad_enabled(train):
                scored = self.policy.score(group)
                value_BR = self.critic.values(scored.hidden_BRH).detach()
                advantage_BR, return_BR = credit_batch(group, value_BR, knobs)
                weight_BR = correction(scored.ratio(), knobs)
                mean = self.policy_loss(scored, weight_BR, advantage_BR)
                loss = mean * (len(group) / len(rollouts))  # its share of the batch's mean
            if train:
                loss.backward()  # type: ignore[no-untyped-call]
            totals.add(scored, weight_BR, loss)

            acted_BR = scored.mask_BR.bool()
            each_BR = scored.mask_BR / scored.mask_BR.sum(1, keepdim=True) / len(rollouts)
            hiddens.append(scored.hidden_BRH[acted_BR])
            values.append(value_BR[acted_BR])
            returns.append(return_BR[acted_BR])
            weights.append(each_BR[acted_BR])

        metrics = {**reward_metrics(rollouts), **totals.metrics()}
        if train:
            metrics["policy_grad_norm"] = self.policy.update()
        critic = self._update_critic(*map(torch.cat, (hiddens, values, returns, weights)))
        return self._done({**metrics, **critic})

    def _update_critic(
        self, hidden_NH: Tensor, value_N: Tensor, return_N: Tensor, weight_N: Tensor
    ) -> dict[StepMetric, float]:
        loss = norm = 0.0
        for _ in range(self.knobs.critic_steps_per_actor):
            loss, norm = self.critic.update(hidden_NH, return_N, weight_N, self.knobs.max_grad_norm)
        return {
            "critic/loss": loss,
            "critic/grad_norm": norm,
            "critic/explained_variance": explained_variance(value_N.tolist(), return_N.tolist()),
            "critic/value_mean": float(value_N.mean()),
        }

    def save(self, directory: Path) -> None:
        super().save(directory)
        self.critic.save(directory)

    def load(self, directory: Path, *, actor_from: Path | None = None) -> None:
        super().load(directory, actor_from=actor_from)
        self.critic.load(directory)
