"""GRPO's tensors: the policy and one step of it. The mathematics is in recipe.py."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from recipes.grpo import recipe as grpo
from recipes.policy_gradient import learner as shared
from recipes.policy_gradient.losses import dis_weight, policy_gradient_loss, sample_mean
from recipes.policy_gradient.policy import LoraPolicy, Scored
from recipes.policy_gradient.rollouts import rollout
from reefcommon.events import SampleReady
from reefcommon.recipe import StepResult

if TYPE_CHECKING:
    from torch import Tensor


class GRPOLearner:
    """An actor alone; see `reefcommon.recipe.Learner`."""

    def __init__(self, knobs: "grpo.Knobs", model_path: Path) -> None:
        self.knobs = knobs
        self.policy = LoraPolicy(knobs, model_path)
        self.steps = 0

    def step(self, batch: Sequence[SampleReady]) -> StepResult:
        """Advantages inside the groups, one update."""
        rollouts = [rollout(sample) for sample in batch]
        advantages = grpo.credit(rollouts)
        tally = shared.accumulate(
            self.policy,
            rollouts,
            advantages=lambda scored, indices: (
                scored.mask_BR
                * scored.mask_BR.new_tensor([advantages[i] for i in indices])[:, None]
            ),
            weight=lambda ratio: dis_weight(ratio, self.knobs.eps_clip, self.knobs.eps_clip_high),
            loss=self._loss,
            max_tokens=self.knobs.micro_batch_tokens,
            train=True,
        )
        metrics = {
            **shared.reward_metrics(rollouts),
            **tally.metrics(),
            "policy_grad_norm": self.policy.update(),
        }
        self.steps += 1
        return StepResult(step=self.steps, metrics=metrics)

    def save(self, directory: Path) -> None:
        """Actor, optimizer, step."""
        self.policy.save(directory)
        shared.write_step(directory, self.steps)

    def load(self, directory: Path, *, actor_from: Path | None = None) -> None:
        """Go on from `directory`, with the actor of `actor_from` where given."""
        self.policy.load(actor_from or directory)
        self.steps = shared.read_step(directory)

    def adopt(self, adapter: Path | None) -> None:
        """Take the policy of a published adapter."""
        self.policy.adopt(adapter)

    def export_adapter(self, directory: Path) -> None:
        """The policy as a PEFT adapter."""
        self.policy.export(directory)

    def _loss(self, scored: Scored, weight_BR: "Tensor", advantage_BR: "Tensor") -> "Tensor":
        value = policy_gradient_loss(scored.logp_BR, weight_BR, advantage_BR, scored.mask_BR)
        return (
            value - self.knobs.entropy_coef * sample_mean(scored.entropy_BR, scored.mask_BR)
            if self.knobs.entropy_coef
            else value
        )
