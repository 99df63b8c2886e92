"""The step of self-play: credit, score, correction, loss, backward, update."""

# Shapes: B rollouts, R response positions.

from collections.abc import Sequence
from pathlib import Path

from recipes.policy_gradient.learner import PolicyLearner, TokenTotals, reward_metrics
from recipes.policy_gradient.losses import dis_weight
from recipes.policy_gradient.rollouts import micro_batches, rollout
from recipes.self_play.admission import CORRECTS, DESIGNER, credit
from recipes.self_play.knobs import Knobs
from reefcommon.events import Unit
from reefcommon.recipe import StepResult


class SelfPlayLearner(PolicyLearner):
    """An actor for both roles; see `reefcommon.recipe.Learner`."""

    def __init__(self, knobs: Knobs, model_path: Path) -> None:
        super().__init__(knobs, model_path)
        self.knobs = knobs

    def step(self, batch: Sequence[Unit]) -> StepResult:
        knobs = self.knobs
        rollouts = [rollout(unit, knobs.score_range, corrects=CORRECTS) for unit in batch]
        totals = TokenTotals(sum(len(one.response) for one in rollouts))
        roles = [unit.metadata.get("role") for unit in batch]
        weights = [knobs.designer_weight if role == DESIGNER else 1.0 for role in roles]
        advantages = [w * a for w, a in zip(weights, credit(batch), strict=True)]

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
