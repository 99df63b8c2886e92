"""The step of GRPO: the credit of each rollout, then a step by it."""

from collections.abc import Sequence

from recipes.grpo.knobs import Knobs
from recipes.policy_gradient.learner import PolicyLearner
from recipes.policy_gradient.returns import group_advantages
from recipes.policy_gradient.rollouts import Rollout, rollout
from reefcommon.events import Unit
from reefcommon.recipe import StepResult


def credit(rollouts: Sequence[Rollout], size: int) -> list[float]:
    """Return the advantage of each rollout over the others of its group."""
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for index, one in enumerate(rollouts):
        by_prompt.setdefault(one.prompt, []).append(index)
    advantages = [0.0] * len(rollouts)
    # Groups of one prompt follow each other in a batch: their means are not pooled.
    groups = (rows[i : i + size] for rows in by_prompt.values() for i in range(0, len(rows), size))
    for indices in groups:
        relative = group_advantages([rollouts[i].reward for i in indices])
        for index, advantage in zip(indices, relative or [0.0] * len(indices), strict=True):
            advantages[index] = advantage
    return advantages


class GRPOLearner(PolicyLearner):
    """An actor alone; see `reefcommon.recipe.Learner`."""

    knobs: Knobs

    def step(self, batch: Sequence[Unit]) -> StepResult:
        rollouts = [rollout(sample, self.knobs.score_range) for sample in batch]
        return self.step_by(rollouts, credit(rollouts, self.knobs.group_size))
