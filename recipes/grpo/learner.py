"""The step of GRPO: credit, score, correction, loss, backward, update."""

# Shapes: B rollouts, R response positions.

from collections.abc import Sequence
from pathlib import Path

from recipes.grpo.knobs import Knobs
from recipes.policy_gradient.learner import PolicyLearner, TokenTotals, reward_metrics
from recipes.policy_gradient.losses import dis_weight
from recipes.policy_gradient.returns import group_advantages
from recipes.policy_gradient.rollouts import Rollout, micro_batches, rollout
from reefcommon.events import Unit
from reefcommon.recipe import StepResult


def credit(rollouts: Sequence[Rollout]) -> list[float]:
    """Return the advantage of each rollout over the others of its prompt."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, one in enumerate(rollouts):
        groups.setdefault(one.prompt, []).append(index)
    advantages = [0.0] * len(rollouts)
    for indices in groups.values():
        relative = group_advantages([rollouts[i].reward for i in indices])
        for index, advantage in zip(indices, relative or [0.0] * len(indices), strict=True):
            advantages[index] = advantage
    return advantages


class GRPOLearner(PolicyLearner):
    """An actor alone; see `reefcommon.recipe.Learner`."""

    def __init__(self, knobs: Knobs, model_path: Path) -> None:
        super().__init__(knobs, model_path)
        self.knobs = knobs

    def step(self, batch: Sequence[Unit]) -> StepResult:
        knobs = self.knobs
        rollouts = [rollout(sample, knobs.score_range) for sample in batch]
        totals = TokenTotals(sum(len(one.response) for one in rollouts))
        advantages = credit(rollouts)

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
