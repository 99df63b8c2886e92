"""The knobs of GRPO."""

from typing import Self

from pydantic import Field, model_validator

from recipes.policy_gradient.knobs import PolicyGradientKnobs


class Knobs(PolicyGradientKnobs):
    batch_size: int = Field(32, ge=2, description="rollouts a step: a multiple of group_size")
    group_size: int = Field(8, ge=2, description="rollouts of one prompt that are compared")

    @model_validator(mode="after")
    def _whole_groups(self) -> Self:
        if self.batch_size % self.group_size:
            raise ValueError(f"batch_size must be a multiple of group_size ({self.group_size})")
        return self
