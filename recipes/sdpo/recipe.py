"""SDPO: self-distillation policy optimization (arXiv 2601.20802). A right sibling is the teacher's
context."""

#     y_1 ... y_G ~ p(. | x)                       a group of attempts at one prompt
#     t_t = p_avg(. | x with a right sibling of y, y_<t)
#     w_t = min(p(y_t) / q(y_t), importance_cap)     q: the weights that sampled y
#     L   = mean over units of mean over tokens of  w_t JSD_0.5(p_t, t_t), over the student's top_k
#           ids and a bucket for the rest; a unit without a right sibling weighs 0
#     avg = (1 - average_rate) avg + average_rate p
#
# signal      one score per attempt; at least success_threshold is right
# target      a LoRA adapter on the served model
# teacher     a moving average of the policy; at rate 0 the base model
# staleness   as SAO; an incomplete group waits until it is complete or too old
# refused     as SAO. A unit whose teacher reads more than max_teacher_tokens is skipped and
#             counted; a batch without any right attempt changes nothing
# run         bind `recipe: recipes.sdpo.recipe:SDPORecipe` in serve.yaml
# expect      tiny model that is right in a third of its attempts
#             (tests/recipes/test_distillation_learning.py): above 0.8
#
# The paper trains on 32 prompts with 8 attempts each. Where nothing succeeds, nothing is learnt: it
# needs a base rate. The step is in recipes/distillation/learner.py, the siblings in siblings.py.

from collections.abc import Sequence
from pathlib import Path

from recipes.policy_gradient.recipe import AdapterRecipe
from recipes.policy_gradient.rollouts import admit, complete_groups
from recipes.sdpo.knobs import Knobs
from recipes.sdpo.siblings import right_siblings
from reefcommon.events import Unit
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Dimensions, Learner


class SDPORecipe(AdapterRecipe):
    name = "sdpo"
    summary = (
        "the policy that has read a right attempt teaches the policy that has not, token by token"
    )
    dimensions = Dimensions(signal="scores of several attempts per prompt", evolves=("lora",))
    shown = (
        "tiny model, 800 attempts, three seeds: mean rate above that of GRPO by 0.077 "
        "[0.070, 0.084] from 0.1, by 0.027 [0.003, 0.051] from 0.3 "
        "(python -m tests.methods.sdpo --steps 25). Through the stack, seeds 0, 1, 2: 0.917, "
        "0.906, 0.927 in 7 steps, GRPO (one seed) as fast (`reef demo --recipe sdpo --arms all`)"
    )
    knobs_type = Knobs
    knobs: Knobs

    def decide(self, waiting: Sequence[Unit], serving: LoadId) -> Decision:
        knobs = self.knobs
        fit = admit(waiting, serving, knobs.max_staleness, knobs.score_range)
        groups = complete_groups(fit.batch, knobs.group_size)
        wanted = knobs.batch_size // knobs.group_size
        batch = [unit for group in groups[:wanted] for unit in group]
        return Decision(tuple(batch) if len(groups) >= wanted else (), fit.refused)

    def learner(self, model_path: Path) -> Learner:
        # torch: in the step process only
        from recipes.distillation.learner import DistillationLearner

        return DistillationLearner(self.knobs, model_path, contexts=right_siblings(self.knobs))
