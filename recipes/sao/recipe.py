"""SAO: single-rollout asynchronous optimization (arXiv 2607.07508). No group of rollouts."""

#     r_t   = exp(log pi(a_t) - log pi_rollout(a_t))     the engine's own log-probabilities
#     f(r)  = r if 1 - eps_clip < r < 1 + eps_clip_high else 0     hard mask (DIS), no gradient
#     L_pi  = mean over rollouts of mean over tokens of  - f(r_t) A_t log pi(a_t)
#     A_t   = GAE over action tokens, reward on the last one,
#             lambda = clip(1 - 1 / (alpha * actions), 0, 1)
#     L_V   = (V_t - G_t)^2, G_t by Monte Carlo, `critic_steps_per_actor` times a step
#
# signal      one score per rollout, reported on its receipt
# target      a LoRA adapter on the served model
# staleness   0 <= lag <= max_staleness is admitted and corrected by f, the rest is refused
# refused     scores outside score_range; tokens of a truncated or penalised distribution
# run         reef serve -c recipes/sao/examples/dictionary/serve.yaml
# expect      tiny bandit (tests/recipes/test_sao_learning.py): mean reward 0.1 -> above 0.9;
#             at lag 8 still so, and without f at most 0.7
#
# The paper trains all weights at 1e-6 with a second model as critic. Here an adapter learns at a
# higher rate, and the critic is a head on the policy's detached hidden states. A batch of one shows
# the path; learning needs 8 and more.
#
# The step is in learner.py, the knobs in knobs.py.

from collections.abc import Sequence
from pathlib import Path

from recipes.policy_gradient.rollouts import admit
from recipes.sao.knobs import Knobs
from reefcommon.events import Unit
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Dimensions, Learner, WeightRecipe


class SAORecipe(WeightRecipe):
    name = "sao"
    summary = (
        "each scored rollout trains a LoRA as it lands; a critic instead of groups, a hard mask "
        "against staleness"
    )
    dimensions = Dimensions(signal="one score per rollout", evolves=("lora",))
    shown = (
        "held-out reward 0.085 [0.071, 0.101] -> 0.937 [0.927, 0.945] in 58 s; with permuted "
        "rewards 0.117 [0.104, 0.132] (`reef demo --model tiny --seed 0`, `--permuted`)"
    )
    knobs_type = Knobs
    knobs: Knobs

    def decide(self, waiting: Sequence[Unit], serving: LoadId) -> Decision:
        # A batch is the oldest `batch_size` samples that are fit and fresh; fewer wait.
        fit = admit(waiting, serving, self.knobs.max_staleness, self.knobs.score_range)
        return Decision.of(fit.batch, fit.refused, self.knobs.batch_size)

    def proposes(self, step: int) -> bool:
        updates = step - self.knobs.critic_warmup_steps
        return updates > 0 and updates % self.knobs.candidate_every == 0

    def learner(self, model_path: Path) -> Learner:
        from recipes.sao.learner import SAOLearner  # torch: in the step process only

        return SAOLearner(self.knobs, model_path)
