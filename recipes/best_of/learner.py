"""The step of best-of: a step that weighs each kept answer."""

from collections.abc import Sequence

from recipes.best_of.recipe import Knobs
from recipes.policy_gradient.learner import PolicyLearner
from recipes.policy_gradient.rollouts import rollout
from reefcommon.events import Unit
from reefcommon.recipe import StepResult


class BestOfLearner(PolicyLearner):
    """A policy that imitates its best answers; see `reefcommon.recipe.Learner`."""

    knobs: Knobs

    def step(self, batch: Sequence[Unit]) -> StepResult:
        knobs = self.knobs
        rollouts = [rollout(unit, knobs.score_range) for unit in batch]
        scores = [one.reward if knobs.weigh_by_score else 1.0 for one in rollouts]
        return self.step_by(rollouts, scores)
