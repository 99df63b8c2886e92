"""The knobs of SDPO."""

from pydantic import Field

from recipes.distillation.knobs import AverageRate, DistillationKnobs, Divergence, Importance
from recipes.policy_gradient.knobs import GroupKnobs

TEMPLATE = (
    "{prompt}\n\nAn earlier attempt that was right:\n\n{demonstration}\n\n"
    "Now solve the task above correctly."
)


class Knobs(GroupKnobs, DistillationKnobs):
    success_threshold: float = Field(
        0.5, description="an attempt with at least this score is right"
    )
    template: str = Field(
        TEMPLATE, description="the teacher's user message, from {prompt} and {demonstration}"
    )
    divergence: Divergence = "jsd"
    top_k: int = Field(100, ge=0, description="ids that are compared at each token; 0: all")
    importance: Importance = "token"
    average_rate: AverageRate = 0.05
