"""Knobs of recipes that train an adapter, and of policy gradients."""

from math import isfinite
from typing import Literal, Self

from pydantic import Field, field_validator, model_validator

from reefcommon import recipe
from reefcommon.recipe import DEFAULT_SCORE_RANGE, ScoreRange

ALL_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear layers of a decoder block, as Llama and its kin name them."""


class PolicyKnobs(recipe.Knobs):
    """Knobs of an adapter, its optimizer and the admission of rollouts."""

    max_staleness: int = Field(
        0, ge=0, description="releases of weights that a rollout may be behind the head"
    )
    score_range: ScoreRange = Field(
        DEFAULT_SCORE_RANGE, description="lowest and highest score; a sample outside is refused"
    )
    policy_lr: float = Field(1e-4, gt=0, description="learning rate of the adapter (AdamW)")
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="decay of squared gradients (AdamW)")
    max_grad_norm: float = Field(
        1.0, ge=0, description="gradients are clipped to this norm; 0: not clipped"
    )
    lora_r: int = Field(8, ge=1, description="rank of the adapter")
    lora_alpha: int = Field(16, ge=1, description="the adapter counts alpha / r times")
    target_modules: tuple[str, ...] = Field(
        ALL_PROJECTIONS, min_length=1, description="projections that the adapter changes"
    )
    prompt_gradient: bool = Field(
        True,
        description="false: no gradient through the prompt's keys and values; several times faster",
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="device of the learner; auto: the GPU if there is one"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="number type of the frozen base; auto: bfloat16 on a GPU, else float32"
    )
    micro_batch_tokens: int = Field(4096, ge=1, description="padded tokens per forward")
    candidate_every: int = Field(1, ge=1, description="policy updates between two candidates")
    seed: int = Field(0, description="of the first weights, and of a seeker's questions")

    @field_validator("score_range")
    @classmethod
    def _ordered(cls, value: ScoreRange) -> ScoreRange:
        if not (all(map(isfinite, value)) and value[0] < value[1]):
            raise ValueError("score_range must be two finite numbers, the lowest first")
        return value


class PolicyGradientKnobs(PolicyKnobs):
    """Knobs of the importance ratio's mask, and of an entropy bonus."""

    eps_clip: float = Field(0.3, gt=0, le=1, description="ratios up to 1 - eps_clip are masked")
    eps_clip_high: float = Field(5.0, gt=0, description="ratios from 1 + eps_clip_high are masked")
    entropy_coef: float = Field(0.0, ge=0, description="weight of the mean entropy as a reward")


class GroupKnobs(PolicyKnobs):
    """Knobs of recipes that compare several answers to one prompt."""

    batch_size: int = Field(32, ge=2, description="answers a step: a multiple of group_size")
    group_size: int = Field(8, ge=2, description="answers to one prompt that are compared")

    @model_validator(mode="after")
    def _whole_groups(self) -> Self:
        if self.batch_size % self.group_size:
            raise ValueError(f"batch_size must be a multiple of group_size ({self.group_size})")
        return self
