"""Best-of with a filter: imitate the best of several answers to a prompt, if they are good."""

#     y_1 ... y_n              n = group_size scored answers to one prompt
#     chosen                   the `keep` best of them that score at least min_score
#     L = mean over chosen of mean over tokens of  - f(r_t) w log pi(y_t)
#     w = 1, or the score (weigh_by_score);  f as in SAO: r_t between the clips, else 0
#
# signal      several scores per prompt
# target      a LoRA adapter on the served model
# staleness   as SAO; an incomplete group waits until it is complete or too old
# refused     as SAO; groups without a good answer (`none_good_enough`), the other answers of a
#             group (`not_among_the_best`)
# run         bind `recipe: recipes.best_of.recipe:BestOfRecipe` in serve.yaml
# expect      tiny bandit (tests/recipes/test_best_of.py): mean reward 0.1 -> above 0.8
#
# Rejection sampling: good answers attract, bad answers are left out and not pushed away.
# The step is in learner.py.

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from recipes.policy_gradient.knobs import GroupKnobs, PolicyGradientKnobs
from recipes.policy_gradient.recipe import AdapterRecipe
from recipes.policy_gradient.rollouts import admit, complete_groups
from reefcommon.events import Unit
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Dimensions, Learner, Refusal


class Knobs(GroupKnobs, PolicyGradientKnobs):
    keep: int = Field(1, ge=1, description="answers of a group that are imitated at most")
    min_score: float = Field(0.5, description="no answer below this score is imitated")
    weigh_by_score: bool = Field(False, description="an answer counts in proportion to its score")

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.keep > self.group_size:
            raise ValueError(f"keep must be at most group_size ({self.group_size})")
        if self.weigh_by_score and self.min_score < 0:
            raise ValueError("weigh_by_score needs min_score >= 0: imitation has no opposite")
        return self


class BestOfRecipe(AdapterRecipe):
    name = "best_of"
    summary = "the best of several answers to a prompt are imitated, if good enough"
    dimensions = Dimensions(signal="scores of several answers per prompt", evolves=("lora",))
    shown = (
        "small letters, tiny model, one seed: 0.085 [0.071, 0.101] -> 0.931 [0.918, 0.942] in 12 "
        "steps; all answers 0.248 [0.214, 0.285], SAO 0.951 in 10 (`reef demo --recipe best_of "
        "--arms all`)"
    )
    knobs_type = Knobs
    knobs: Knobs

    def decide(self, waiting: Sequence[Unit], serving: LoadId) -> Decision:
        knobs = self.knobs
        fit = admit(waiting, serving, knobs.max_staleness, knobs.score_range)
        chosen: list[Unit] = []
        others: list[Refusal] = []
        refused: list[Refusal] = list(fit.refused)
        left = knobs.batch_size // knobs.group_size
        for group in complete_groups(fit.batch, knobs.group_size):
            best = sorted(group, key=lambda one: -_score(one))[: knobs.keep]  # the oldest of equals
            good = [one for one in best if _score(one) >= knobs.min_score]
            if not good:
                refused += [(one, "none_good_enough", None) for one in group]
            elif left:
                left, chosen = left - 1, chosen + good
                ids = {one.event_id for one in good}
                rest = [one for one in group if one.event_id not in ids]
                others += [(one, "not_among_the_best", None) for one in rest]
        if left:
            return Decision(refused=tuple(refused))
        # The others of a group go with its best: left behind, they would join another group.
        return Decision(tuple(chosen), (*refused, *others))

    def learner(self, model_path: Path) -> Learner:
        from recipes.best_of.learner import BestOfLearner  # torch: in the step process only

        return BestOfLearner(self.knobs, model_path)


def _score(unit: Unit) -> float:
    return unit.reward or 0.0
