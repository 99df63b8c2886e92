"""SAO: single-rollout asynchronous optimization (arXiv 2607.07508). One scored rollout a prompt, no group to wait for.

    r_t   = exp(log pi(a_t) - log pi_rollout(a_t))              the engine's own log-probabilities
    f(r)  = r if 1 - eps_clip < r < 1 + eps_clip_high else 0    double-sided hard mask (DIS), no gradient
    L_pi  = mean over rollouts of mean over tokens of  - f(r_t) A_t log pi(a_t)
    A_t   = GAE over action tokens, reward on the last one, lambda = clip(1 - 1 / (alpha * actions), 0, 1)
    L_V   = (V_t - G_t)^2, G_t by Monte Carlo (lambda = 1), `critic_steps_per_actor` times a step

signal      one finite score per rollout, reported on its receipt
target      a LoRA adapter on the served model
staleness   0 <= lag <= max_staleness releases is admitted, the rest is refused with its reason; what is admitted is corrected by f
run         reef serve -c recipes/sao/examples/dictionary/serve.yaml
expect      tiny bandit (tests/recipes/test_sao_learning.py): mean reward 0.1 -> above 0.9; at lag 8 still so, and without f at most 0.7

The paper trains all weights at 1e-6 with a second model as critic; here an adapter learns at a higher rate, and the critic is a head
on the policy's detached hidden states. Batches of one (the example) show the path; learning wants 8 and more.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from recipes.policy_gradient.policy import ALL_PROJECTIONS
from recipes.policy_gradient.returns import length_adaptive_lambda, skip_observation_gae
from recipes.policy_gradient.rollouts import admit
from reefcommon import recipe
from reefcommon.events import SampleReady
from reefcommon.ids import LoadId
from reefcommon.recipe import Decision, Dimensions, Learner, WeightRecipe

if TYPE_CHECKING:
    from torch import Tensor


class Knobs(recipe.Knobs):
    """What `serve.yaml` may set."""

    batch_size: int = Field(1, ge=1, description="rollouts per optimizer step")
    max_staleness: int = Field(
        0, ge=0, description="releases that a rollout's weights may be behind the head"
    )
    eps_clip: float = Field(
        0.3, gt=0, le=1, description="ratios of 1 - eps_clip and less are masked"
    )
    eps_clip_high: float = Field(
        5.0, gt=0, description="ratios of 1 + eps_clip_high and more are masked"
    )
    correction: Literal["dis", "none"] = Field(
        "dis", description="none: no importance ratio at all (for ablations)"
    )
    critic_steps_per_actor: int = Field(2, ge=1, description="critic updates a step")
    critic_warmup_steps: int = Field(
        10, ge=0, description="first steps that train the critic alone and propose nothing"
    )
    critic_width: int = Field(0, ge=0, description="hidden units of the value head; 0: linear")
    length_adaptive_lambda: bool = Field(
        True, description="the actor's lambda grows with the rollout's length"
    )
    lambda_alpha: float = Field(1.5, gt=0, description="alpha of the length-adaptive lambda")
    lambd: float = Field(
        1.0, ge=0, le=1, description="the actor's lambda where it is not length-adaptive"
    )
    critic_lambda: float = Field(
        1.0, ge=0, le=1, description="lambda of the critic's returns; 1: Monte Carlo"
    )
    gamma: float = Field(1.0, gt=0, le=1, description="discount a token")
    policy_lr: float = Field(1e-4, gt=0, description="learning rate of the adapter (AdamW)")
    critic_lr: float = Field(1e-3, gt=0, description="learning rate of the value head")
    entropy_coef: float = Field(
        0.0, ge=0, description="how much of the mean entropy is taken off the loss"
    )
    max_grad_norm: float = Field(1.0, gt=0, description="gradients are clipped to this norm")
    lora_r: int = Field(8, ge=1, description="rank of the adapter")
    lora_alpha: int = Field(16, ge=1, description="the adapter counts alpha / r times")
    target_modules: tuple[str, ...] = Field(
        ALL_PROJECTIONS, min_length=1, description="projections that the adapter changes"
    )
    prompt_gradient: bool = Field(
        True,
        description="false: no gradient through the prompt's keys and values; several times faster",
    )
    micro_batch_tokens: int = Field(4096, ge=1, description="padded tokens per forward")
    candidate_every: int = Field(1, ge=1, description="actor updates between two candidates")
    seed: int = Field(0, description="of the first weights of adapter and critic")


# ------------------------------------------------------------------ pure functions, in the order of the data


def decide(waiting: Sequence[SampleReady], serving: LoadId, knobs: Knobs) -> Decision:
    """Admit what is fit and fresh; a batch is the oldest `batch_size` of it, and fewer wait."""
    sorted_out = admit(waiting, serving, knobs.max_staleness)
    enough = len(sorted_out.admitted) >= knobs.batch_size
    return Decision(
        batch=sorted_out.admitted[: knobs.batch_size] if enough else (), refused=sorted_out.refused
    )


def credit(
    mask: Sequence[int], values: Sequence[float], reward: float, knobs: Knobs
) -> tuple[list[float], list[float]]:
    """(advantages for the actor, returns for the critic), both over the response and 0 on observations."""
    lam = (
        length_adaptive_lambda(sum(mask), knobs.lambda_alpha)
        if knobs.length_adaptive_lambda
        else knobs.lambd
    )
    advantages, _ = skip_observation_gae(mask, values, reward, gamma=knobs.gamma, lam=lam)
    _, returns = skip_observation_gae(
        mask, values, reward, gamma=knobs.gamma, lam=knobs.critic_lambda
    )
    return advantages, returns


def correction(ratio_BR: "Tensor", knobs: Knobs) -> "Tensor":
    """f(r): how much each token's gradient counts, given how far the policy has moved since it was sampled."""
    from recipes.policy_gradient.losses import dis_weight

    return (
        dis_weight(ratio_BR, knobs.eps_clip, knobs.eps_clip_high)
        if knobs.correction == "dis"
        else ratio_BR.new_ones(ratio_BR.shape)
    )


def loss(
    logp_BR: "Tensor",
    entropy_BR: "Tensor",
    weight_BR: "Tensor",
    advantage_BR: "Tensor",
    mask_BR: "Tensor",
    knobs: Knobs,
) -> "Tensor":
    """The actor's loss; with `entropy_coef`, minus that much of the mean entropy."""
    from recipes.policy_gradient.losses import policy_gradient_loss, sample_mean

    value = policy_gradient_loss(logp_BR, weight_BR, advantage_BR, mask_BR)
    return (
        value - knobs.entropy_coef * sample_mean(entropy_BR, mask_BR)
        if knobs.entropy_coef
        else value
    )


def proposes(step: int, knobs: Knobs) -> bool:
    """Every `candidate_every` updates of the actor, none while the critic warms up."""
    updates = step - knobs.critic_warmup_steps
    return updates > 0 and updates % knobs.candidate_every == 0


# ------------------------------------------------------------------ the recipe


class SAORecipe(WeightRecipe):
    """Single-rollout asynchronous optimization."""

    name: ClassVar[str] = "sao"
    summary: ClassVar[str] = (
        "each scored rollout trains a LoRA as it lands; a critic instead of groups, a hard mask against staleness"
    )
    dimensions: ClassVar[Dimensions] = Dimensions(
        signal="one score per rollout", acquisition="reactive", evolves=("lora",)
    )
    knobs_type: ClassVar[type[recipe.Knobs]] = Knobs
    knobs: Knobs

    def decide(self, waiting: Sequence[SampleReady], serving: LoadId) -> Decision:
        """See the function of this name."""
        return decide(waiting, serving, self.knobs)

    def proposes(self, step: int) -> bool:
        """See the function of this name."""
        return proposes(step, self.knobs)

    def learner(self, model_path: Path) -> Learner:
        """Actor and critic on the base model."""
        from recipes.sao.learner import SAOLearner

        return SAOLearner(self.knobs, model_path)
