"""SAO's tensors: the policy, the critic, and one step of both. The mathematics is in recipe.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.policy_gradient import learner as shared
from recipes.policy_gradient.critic import Critic
from recipes.policy_gradient.policy import LoraPolicy, Scored
from recipes.policy_gradient.returns import explained_variance
from recipes.policy_gradient.rollouts import Rollout, rollout
from recipes.sao import recipe as sao
from reefcommon.events import SampleReady
from reefcommon.recipe import StepResult

if TYPE_CHECKING:
    from torch import Tensor


class SAOLearner:
    """Actor and critic; see `reefcommon.recipe.Learner`."""

    def __init__(self, knobs: "sao.Knobs", model_path: Path) -> None:
        self.knobs = knobs
        self.policy = LoraPolicy(knobs, model_path)
        self.critic = Critic(
            self.policy.hidden_size,
            width=knobs.critic_width,
            learning_rate=knobs.critic_lr,
            seed=knobs.seed,
        )
        self.steps = 0

    def step(self, batch: Sequence[SampleReady]) -> StepResult:
        """Advantages by the critic as it was, one update of the actor (none while warming up), then the critic's own updates."""
        rollouts = [rollout(sample) for sample in batch]
        train = self.steps >= self.knobs.critic_warmup_steps
        book = _Book(rollouts, self.knobs, self.critic)
        tally = shared.accumulate(
            self.policy,
            rollouts,
            advantages=book.advantages,
            weight=lambda ratio: sao.correction(ratio, self.knobs),
            loss=self._loss,
            max_tokens=self.knobs.micro_batch_tokens,
            train=train,
        )
        metrics = {**shared.reward_metrics(rollouts), **tally.metrics(), **book.metrics()}
        if train:
            metrics["policy_grad_norm"] = self.policy.update()
        for _ in range(self.knobs.critic_steps_per_actor):
            metrics["critic/loss"], metrics["critic/grad_norm"] = book.update_critic(
                self.knobs.max_grad_norm
            )
        self.steps += 1
        return StepResult(step=self.steps, metrics=metrics)

    def save(self, directory: Path) -> None:
        """Actor, critic, both optimizers, step."""
        self.policy.save(directory)
        self.critic.save(directory)
        shared.write_step(directory, self.steps)

    def load(self, directory: Path, *, actor_from: Path | None = None) -> None:
        """Go on from `directory`, with the actor of `actor_from` where given."""
        self.policy.load(actor_from or directory)
        self.critic.load(directory)
        self.steps = shared.read_step(directory)

    def adopt(self, adapter: Path | None) -> None:
        """Take the policy of a published adapter; the critic goes on."""
        self.policy.adopt(adapter)

    def export_adapter(self, directory: Path) -> None:
        """The policy as a PEFT adapter."""
        self.policy.export(directory)

    def _loss(self, scored: Scored, weight_BR: "Tensor", advantage_BR: "Tensor") -> "Tensor":
        return sao.loss(
            scored.logp_BR, scored.entropy_BR, weight_BR, advantage_BR, scored.mask_BR, self.knobs
        )


class _Book:
    """One step's credit: fills the advantages forward by forward, and keeps what the critic learns from afterwards."""

    def __init__(self, rollouts: Sequence[Rollout], knobs: "sao.Knobs", critic: Critic) -> None:
        self._rollouts, self._knobs, self._critic = rollouts, knobs, critic
        self._features: list[Tensor] = []
        self._weights: list[Tensor] = []
        self._values: list[float] = []
        self._returns: list[float] = []

    def advantages(self, scored: Scored, indices: Sequence[int]) -> "Tensor":
        """[B, R], from the critic's values of this forward."""
        import torch

        with torch.no_grad():
            value_BR = self._critic.values(scored.hidden_BRH)
        advantage_BR = torch.zeros_like(value_BR)
        for row, index in enumerate(indices):
            one = self._rollouts[index]
            length = len(one.response)
            values = value_BR[row, :length].tolist()
            advantages, returns = sao.credit(one.mask, values, one.reward, self._knobs)
            advantage_BR[row, :length] = torch.tensor(advantages)
            acted = [t for t in range(length) if one.mask[t]]
            self._features.append(scored.hidden_BRH[row, acted])
            self._weights.append(
                torch.full((len(acted),), 1.0 / (len(self._rollouts) * len(acted)))
            )
            self._values += [values[t] for t in acted]
            self._returns += [returns[t] for t in acted]
        return advantage_BR

    def update_critic(self, max_grad_norm: float) -> tuple[float, float]:
        """One critic step over all action tokens of the batch."""
        import torch

        returns = torch.tensor(self._returns)
        return self._critic.update(
            torch.cat(self._features), returns, torch.cat(self._weights), max_grad_norm
        )

    def metrics(self) -> dict[str, float]:
        """How well the critic knew the returns before it learnt from them."""
        return {
            "critic/explained_variance": explained_variance(self._values, self._returns),
            "critic/value_mean": sum(self._values) / len(self._values),
        }
