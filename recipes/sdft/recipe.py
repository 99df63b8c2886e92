"""SDFT: the policy that has read a demonstration teaches the policy that has not."""

#     y ~ p(. | x)                                   the student answers without the demonstration
#     t_t = p_avg(. | x with a demonstration, y_<t)  the same model reads how it is done
#     w   = mean over tokens of min(p(y_t) / q(y_t), importance_cap)
#     L   = mean over units of  w * mean over tokens of KL(t_t || p_t)
#     avg = (1 - average_rate) avg + average_rate p
#
# signal      a demonstration: from the report's metadata or feedback, or a function of yours
# target      a LoRA adapter on the served model
# teacher     a moving average of the policy; at rate 0 the base model
# staleness   0 <= lag <= max_staleness is admitted and weighed by w, the rest is refused
# refused     units without a demonstration; tokens of a truncated or penalised distribution
# run         bind `recipe: recipes.sdft.recipe:SDFTRecipe` in serve.yaml, and report
#             {"metadata": {"demonstration": "..."}} on the receipts
# expect      tiny model (tests/recipes/test_distillation_learning.py): 0.1 -> above 0.8; it forgets
#             less than SFT on the same demonstrations (`python -m tests.methods.sdft`)
#
# It learns on its own answers, so that it moves only as far as the demonstration moves them. At a
# high rate it forgets all the same (docs/methods.md).
# The step is in recipes/distillation/learner.py, the knobs in knobs.py.

from collections.abc import Callable, Sequence
from pathlib import Path

from recipes.distillation.messages import prompt_messages, with_demonstration
from recipes.policy_gradient.recipe import AdapterRecipe
from recipes.policy_gradient.rollouts import admit
from recipes.sdft.knobs import Knobs
from reefcommon.events import Signal, Unit
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Dimensions, Learner
from reefcommon.recipe_context import Context
from reefcommon.recipe_loading import resolve


class SDFTRecipe(AdapterRecipe):
    name = "sdft"
    summary = "the policy that has read a demonstration teaches the policy that has not"
    dimensions = Dimensions(signal="demonstrations", evolves=("lora",))
    shown = (
        "a second skill on a tiny model, rate 1e-3, six seeds: keeps 0.41 [0.20, 0.62] more of the "
        "first skill than SFT at equal gain (python -m tests.methods.sdft). Through the stack, one "
        "seed on one word: both forget alike (`reef demo --recipe sdft --arms all`)"
    )
    knobs_type = Knobs
    knobs: Knobs

    def __init__(self, knobs: Knobs) -> None:
        super().__init__(knobs)
        self.demonstration: Callable[[Unit], str | None] = resolve(knobs.demonstration)

    async def signal(self, unit: Unit, ctx: Context) -> Signal | None:
        del ctx  # no model is asked
        text = self.demonstration(unit)
        if not text:
            return None
        teacher = with_demonstration(prompt_messages(unit), text, self.knobs.template)
        return Signal(score=unit.score, words=text, teacher=teacher)

    def decide(self, waiting: Sequence[Unit], serving: LoadId) -> Decision:
        knobs = self.knobs
        fit = admit(waiting, serving, knobs.max_staleness, knobs.score_range, scored=False)
        return Decision.of(fit.batch, fit.refused, knobs.batch_size)

    def learner(self, model_path: Path) -> Learner:
        # torch: in the step process only
        from recipes.distillation.learner import DistillationLearner

        return DistillationLearner(self.knobs, model_path)
