"""The knobs of TTT-Discover. The defaults are those of the published runs."""

from typing import Literal

from pydantic import Field

from recipes.policy_gradient.knobs import PolicyKnobs


class Knobs(PolicyKnobs):
    problem: str = Field(
        "recipes.ttt_discover.examples.row_pattern.problem:PROBLEM",
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="package.module:NAME of the problem",
    )
    algorithm: Literal["entropic", "mean_baseline", "frozen"] = Field(
        "entropic", description="for ablations: the mean as baseline, or a policy that never learns"
    )
    steps: int = Field(50, ge=1, description="steps of the search")
    groups_per_step: int = Field(8, ge=1, description="parents of a step")
    # Of two rollouts no beta is ln 2 from uniform, and the better would weigh without a bound.
    rollouts_per_group: int = Field(64, ge=3, description="rollouts from each parent")
    exploration: float = Field(1.0, ge=0, description="c of the PUCT rule")
    archive_size: int = Field(1000, ge=1, description="solutions kept at most")
    kl_coef: float = Field(0.1, ge=0, description="pull towards the frozen base, in advantages")
    temperature: float = Field(1.0, gt=0, description="of the rollouts")
    max_tokens: int = Field(26_000, ge=1, description="tokens of a rollout at most")
    allowed_token_ids: tuple[int, ...] = Field(
        (), description="only these tokens are sampled; empty: all. The learner takes the same mask"
    )
    verify_in_flight: int = Field(2, ge=1, description="verifiers that run at the same time")
    policy_lr: float = Field(4e-5, gt=0, description="learning rate of the adapter (AdamW)")
    adam_beta2: float = Field(0.95, ge=0, lt=1, description="decay of squared gradients (AdamW)")
    max_grad_norm: float = Field(
        0.0, ge=0, description="gradients are clipped to this norm; 0: not clipped"
    )
    lora_r: int = Field(32, ge=1, description="rank of the adapter")
    lora_alpha: int = Field(32, ge=1, description="the adapter counts alpha / r times")

    @property
    def grid(self) -> int:
        return self.groups_per_step * self.rollouts_per_group
