"""The step of best-of: score, correction, loss, backward, update."""

# Shapes: B rollouts, R response positions.

from collections.abc import Sequence
from pathlib import Path

from recipes.best_of.recipe import Knobs
from recipes.policy_gradient.learner import PolicyLearner, TokenTotals, reward_metrics
from recipes.policy_gradient.losses import dis_weight
from recipes.policy_gradient.rollouts import micro_batches, rollout
from reefcommon.events import Unit
from reefcommon.recipe import StepResult


class BestOfLearner(PolicyLearner):
    """A policy that imitates its best answers; see `reefcommon.recipe.Learner`."""

    def __init__(self, knobs: Knobs, model_path: Path) -> None:
        super().__init__(knobs, model_path)
        self.knobs = knobs

    def step(self, batch: Sequence[Unit]) -> StepResult:
        knobs = self.knobs
        rollouts = [rollout(unit, knobs.score_range) for unit in batch]
        totals = TokenTotals(sum(len(one.response) for one in rollouts))

        for indices in micro_batches(rollouts, knobs.micro_batch_tokens):
            group = [rollouts[i] for i in indices]
            scored = self.policy.score(group)
            scores = [one.reward if knobs.weigh_by_score else 1.0 for one in group]
            advantage_BR = scored.mask_BR.new_tensor(scores)[:, None]
            weight_BR = dis_weight(scored.ratio(), knobs.eps_clip, knobs.eps_clip_high)
            mean = self.policy_loss(scored, weight_BR, advantage_BR)
            loss = mean * (len(group) / len(rollouts))  # its share of the batch's mean
            loss.backward()  # type: ignore[no-untyped-call]
            totals.add(scored, weight_BR, loss)

        metrics = {**reward_metrics(rollouts), **totals.metrics()}
        metrics["policy_grad_norm"] = self.policy.update()
        return self._done(metrics)
