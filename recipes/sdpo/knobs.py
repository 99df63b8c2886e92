"""The knobs of SDPO."""

from typing import Literal, Self

from pydantic import Field, model_validator

from recipes.distillation.knobs import DistillationKnobs

TEMPLATE = (
    "{prompt}\n\nAn earlier attempt that was right:\n\n{demonstration}\n\n"
    "Now solve the task above correctly."
)


class Knobs(DistillationKnobs):
    batch_size: int = Field(32, ge=2, description="units a step: a multiple of group_size")
    group_size: int = Field(8, ge=2, description="attempts at one prompt")
    success_threshold: float = Field(
        0.5, description="an attempt with at least this score is right"
    )
    template: str = Field(
        TEMPLATE, description="the teacher's user message, from {prompt} and {demonstration}"
    )
    divergence: Literal["forward_kl", "reverse_kl", "jsd", "sampled_reverse_kl"] = Field(
        "jsd", description="distance of the student from the teacher at each token"
    )
    top_k: int = Field(100, ge=0, description="ids that are compared at each token; 0: all")
    importance: Literal["none", "token", "sequence"] = Field(
        "token", description="weight against staleness: none, of each token, or of the answer"
    )
    average_rate: float = Field(
        0.05,
        ge=0,
        le=1,
        description="share of the policy in the teacher's moving average; 0: the base model",
    )

    @model_validator(mode="after")
    def _whole_groups(self) -> Self:
        if self.batch_size % self.group_size:
            raise ValueError(f"batch_size must be a multiple of group_size ({self.group_size})")
        return self
