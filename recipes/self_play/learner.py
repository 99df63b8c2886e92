"""The step of self-play: the credit of both roles, then a step by it."""

from collections.abc import Sequence

from recipes.policy_gradient.barrier import CORRECTS
from recipes.policy_gradient.learner import PolicyLearner
from recipes.policy_gradient.rollouts import rollout
from recipes.self_play.admission import DESIGNER, credit
from recipes.self_play.knobs import Knobs
from reefcommon.events import Unit
from reefcommon.recipe import StepResult


class SelfPlayLearner(PolicyLearner):
    """An actor for both roles; see `reefcommon.recipe.Learner`."""

    knobs: Knobs

    def step(self, batch: Sequence[Unit]) -> StepResult:
        knobs = self.knobs
        rollouts = [rollout(unit, knobs.score_range, corrects=CORRECTS) for unit in batch]
        roles = [unit.metadata.get("role") for unit in batch]
        weights = [knobs.designer_weight if role == DESIGNER else 1.0 for role in roles]
        advantages = [w * a for w, a in zip(weights, credit(batch), strict=True)]
        return self.step_by(rollouts, advantages)
