"""OPD: on-policy distillation from a separate, frozen teacher. No score is needed."""

#     y ~ p(. | x)                              the student answers
#     g_t = log p(y_t) - log t(y_t)             the teacher reads the student's very tokens
#     L   = mean over units of mean over tokens of  g_t,  its gradient  g_t d log p(y_t)
#
# signal      the teacher's probability of each sampled token
# target      a LoRA adapter on the served model
# teacher     a directory: a PEFT adapter on the same base (also of another rank), or a whole model
#             with the same tokens. An adapter shares the base weights. A served teacher: served.py
# staleness   0: the batch is trained on once, by the weights that sampled it
# refused     staler units; tokens of a truncated or penalised distribution. A score is ignored. A
#             unit whose teacher reads more than max_teacher_tokens is skipped and counted
# run         bind `recipe: recipes.opd.recipe:OPDRecipe` with `teacher:` in serve.yaml
# expect      tiny model (tests/recipes/test_distillation_learning.py): a rate of 0.00 -> above half
#             of the teacher's; SAO on the same reward stays at 0 (`python -m tests.methods.opd`)
#
# Teacher and student must stop alike, or the student learns never to end its answer. The step is
# in recipes/distillation/learner.py, the knobs in knobs.py.

from collections.abc import Sequence
from pathlib import Path

from recipes.opd.knobs import Knobs
from recipes.policy_gradient.recipe import AdapterRecipe
from recipes.policy_gradient.rollouts import admit
from reefcommon.events import Unit
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Dimensions, Learner


class OPDRecipe(AdapterRecipe):
    name = "opd"
    summary = "a frozen teacher grades every token that the policy has sampled; no score is needed"
    dimensions = Dimensions(signal="a teacher's log-probabilities", evolves=("lora",))
    shown = (
        "four digits on a tiny model, 9,600 answers: rate 0.0001 -> 0.97, 0.99, 0.62, 0.98 "
        "with teachers at 0.98, 0.99, 0.71, 0.98; SAO on a score stays "
        "at 0.0001 (python -m tests.methods.opd). Through the stack, three seeds: a greeting "
        "0.000 -> 0.932, 0.927, 0.979, SAO (one seed) 0.000 (`reef demo --recipe opd --arms all`)"
    )
    knobs_type = Knobs
    knobs: Knobs

    def decide(self, waiting: Sequence[Unit], serving: LoadId) -> Decision:
        knobs = self.knobs
        fit = admit(waiting, serving, knobs.max_staleness, knobs.score_range, scored=False)
        return Decision.of(fit.batch, fit.refused, knobs.batch_size)

    def learner(self, model_path: Path) -> Learner:
        # torch: in the step process only
        from recipes.distillation.learner import DistillationLearner

        return DistillationLearner(self.knobs, model_path, teacher=self.knobs.teacher)
