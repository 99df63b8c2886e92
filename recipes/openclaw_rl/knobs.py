"""The knobs of OpenClaw-RL."""

from typing import Literal

from pydantic import Field

from recipes.policy_gradient.knobs import PolicyGradientKnobs


class Knobs(PolicyGradientKnobs):
    batch_size: int = Field(16, ge=1, description="judged turns a step")
    objective: Literal["binary", "opd", "combine"] = Field(
        "combine", description="learn from the votes, from the hints, or from both"
    )
    reward_baseline: Literal["none", "batch_mean"] = Field(
        "none", description="subtracted from the votes; without it rare approval can collapse"
    )
    judge: str = Field("judge", description="the model of `models:` that judges")
    judge_votes: int = Field(3, ge=1, description="answers of the judge to each question")
    judge_temperature: float = Field(0.6, ge=0, description="at which the judge is sampled")
    judge_max_tokens: int = Field(4096, ge=1, description="of an answer of the judge")
    rl_weight: float = Field(1.0, ge=0, description="weight of the votes' loss")
    opd_weight: float = Field(1.0, ge=0, description="weight of the hints' loss")
    eps_clip: float = Field(0.2, gt=0, le=1, description="the ratio is clipped below at 1 - this")
    eps_clip_high: float = Field(0.28, gt=0, description="the ratio is clipped above at 1 + this")
    distillation: Literal["jsd", "forward_kl", "topk_select"] = Field(
        "jsd", description="the hints' loss: over the teacher's likeliest tokens, or the student's"
    )
    teacher_top_k: int = Field(
        50, ge=1, description="the teacher's likeliest tokens; the rest is one tail"
    )
    student_top_k: int = Field(4, ge=1, description="topk_select: the student's likeliest tokens")
    diff_clip: float = Field(
        1.0, gt=0, description="topk_select: bound of the difference to the teacher, in nats"
    )
    anchor: bool = Field(
        False, description="a judged turn without a hint is pulled towards the base model"
    )
    max_teacher_tokens: int = Field(
        10240, ge=2, description="a hint that makes the teacher read more is left out"
    )
    chunk_positions: int = Field(
        512, ge=1, description="tokens whose distributions are in memory at once"
    )
