"""GRPO with SAO's mask: a group of rollouts instead of a critic."""

#     A   = (R - mean) / std inside a complete group of `group_size` rollouts of one prompt
#     r_t = exp(log pi(a_t) - log pi_rollout(a_t))
#     f(r) = r if 1 - eps_clip < r < 1 + eps_clip_high else 0
#     L   = mean over rollouts of mean over tokens of  - f(r_t) A log pi(a_t)
#
# signal      one score per rollout
# target      a LoRA adapter on the served model
# staleness   as SAO; an incomplete group waits until it is complete or too old
# refused     as SAO; a group whose rewards are all equal (`zero_variance_group`) has no gradient
# run         bind `recipe: recipes.grpo.recipe:GRPORecipe` in serve.yaml
# expect      tiny bandit (tests/recipes/test_grpo_learning.py): mean reward 0.1 -> above 0.8
#
# The step is in learner.py, the knobs in knobs.py.

from collections.abc import Sequence
from pathlib import Path

from recipes.grpo.knobs import Knobs
from recipes.policy_gradient.recipe import AdapterRecipe
from recipes.policy_gradient.returns import group_advantages
from recipes.policy_gradient.rollouts import admit, complete_groups
from reefcommon.events import Unit
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Dimensions, Learner


class GRPORecipe(AdapterRecipe):
    """Group-relative policy optimization with a double-sided hard mask."""

    name = "grpo"
    summary = (
        "groups of rollouts of one prompt train a LoRA; SAO's control arm, with the same mask "
        "against staleness"
    )
    dimensions = Dimensions(signal="scores of several rollouts per prompt", evolves=("lora",))
    shown = (
        "small letters, tiny model, one seed: 0.085 [0.071, 0.101] -> 0.875 [0.861, 0.888] in 67 "
        "s; with permuted rewards 0.139 [0.127, 0.153] (`reef demo --recipe grpo --arms all`)"
    )
    knobs_type = Knobs
    knobs: Knobs

    def decide(self, waiting: Sequence[Unit], serving: LoadId) -> Decision:
        knobs = self.knobs
        fit = admit(waiting, serving, knobs.max_staleness, knobs.score_range)
        batch: list[Unit] = []
        refused = list(fit.refused)
        for group in complete_groups(fit.batch, knobs.group_size):
            if group_advantages([one.reward or 0.0 for one in group]) is None:
                refused += [(one, "zero_variance_group", _lag(one, serving)) for one in group]
            elif len(batch) < knobs.batch_size:
                batch += group
        full = len(batch) == knobs.batch_size
        return Decision(batch=tuple(batch) if full else (), refused=tuple(refused))

    def learner(self, model_path: Path) -> Learner:
        from recipes.grpo.learner import GRPOLearner  # torch: in the step process only

        return GRPOLearner(self.knobs, model_path)


def _lag(sample: Unit, serving: LoadId) -> int | None:
    return LoadId.parse(sample.load_id or "").lag_behind(serving)
