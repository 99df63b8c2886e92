"""SFT: supervised fine-tuning on accepted answers. The baseline of the other recipes."""

#     L = mean over units of mean over tokens of  - log p(y_t)
#
# signal      target `answer`: a score; at least min_score accepts the answer, whose sampled tokens
#             are the target as the engine made them. target `demonstration`: the text that a report
#             brings (metadata or feedback, `demonstration`); tokenised, with the end of a turn
# target      a LoRA adapter on the served model
# staleness   0 <= lag <= max_staleness is admitted; nothing corrects it
# refused     answers below min_score (`not_accepted`), units without a demonstration, tokens of a
#             truncated or penalised distribution
# run         bind `recipe: recipes.sft.recipe:SFTRecipe` in serve.yaml
# expect      tiny model: learns as fast as SDFT and forgets more (`python -m tests.methods.sdft`)
#
# The step is in learner.py, the knobs in knobs.py.

from collections.abc import Sequence
from pathlib import Path

from recipes.distillation.messages import demonstration_in
from recipes.policy_gradient.recipe import AdapterRecipe
from recipes.policy_gradient.rollouts import admit
from recipes.sft.knobs import Knobs
from reefcommon.events import Unit
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Dimensions, Learner, sift


class SFTRecipe(AdapterRecipe):
    name = "sft"
    summary = "accepted answers, or demonstrations, are imitated"
    dimensions = Dimensions(signal="accepted answers, or demonstrations", evolves=("lora",))
    shown = (
        "the greeting that users accept, seeds 0, 1, 2: 0.938, 0.911, 0.917 in 69 to 89 s; one "
        "seed of permuted acceptance 0.010 [0.003, 0.039], of all answers 0.000 (`reef demo "
        "--recipe sft --arms all --minutes 1.5`)"
    )
    knobs_type = Knobs
    knobs: Knobs

    def decide(self, waiting: Sequence[Unit], serving: LoadId) -> Decision:
        knobs = self.knobs
        scored = knobs.target == "answer"
        fit = admit(waiting, serving, knobs.max_staleness, knobs.score_range, scored=scored)
        accepted, refused = sift(fit.batch, self.unaccepted)
        return Decision.of(accepted, (*fit.refused, *refused), knobs.batch_size)

    def unaccepted(self, unit: Unit) -> str | None:
        """Return why a unit is no target, or None."""
        if self.knobs.target == "demonstration":
            return None if demonstration_in(unit) else "no_demonstration"
        right = unit.reward is not None and unit.reward >= self.knobs.min_score
        return None if right else "not_accepted"

    def learner(self, model_path: Path) -> Learner:
        from recipes.sft.learner import SFTLearner  # torch: in the step process only

        return SFTLearner(self.knobs, model_path)
