"""The knobs of SAO. The defaults train an adapter; the paper trains all weights at 1e-6."""

from typing import Literal

from pydantic import Field

from recipes.policy_gradient.knobs import PolicyGradientKnobs


class Knobs(PolicyGradientKnobs):
    batch_size: int = Field(1, ge=1, description="rollouts per optimizer step")
    correction: Literal["dis", "ratio", "none"] = Field(
        "dis", description="for ablations: the importance ratio without the mask, or none"
    )
    critic_steps_per_actor: int = Field(2, ge=1, description="critic updates a step")
    critic_warmup_steps: int = Field(
        10, ge=0, description="first steps that train the critic alone and propose nothing"
    )
    critic_width: int = Field(0, ge=0, description="hidden units of the value head; 0: linear")
    critic_lr: float = Field(1e-3, gt=0, description="learning rate of the value head")
    length_adaptive_lambda: bool = Field(
        True, description="the actor's lambda grows with the rollout's length"
    )
    lambda_alpha: float = Field(1.5, gt=0, description="alpha of the length-adaptive lambda")
    lambd: float = Field(1.0, ge=0, le=1, description="the actor's lambda if not length-adaptive")
    critic_lambda: float = Field(
        1.0, ge=0, le=1, description="lambda of the critic's returns; 1: Monte Carlo"
    )
    gamma: float = Field(1.0, gt=0, le=1, description="discount a token")
