"""Knobs that every distillation recipe has."""

from typing import Annotated, Literal

from pydantic import Field

from recipes.policy_gradient.knobs import PolicyKnobs

Divergence = Annotated[
    Literal["forward_kl", "reverse_kl", "jsd", "sampled_reverse_kl"],
    Field(description="distance of the student from the teacher at each token"),
]
Rest = Literal["tail", "renormalized"]
Importance = Annotated[
    Literal["none", "token", "sequence"],
    Field(description="weight against staleness: none, of each token, or of the answer"),
]
_AVERAGE = "share of the policy in the teacher's moving average; 0: the base model"
AverageRate = Annotated[float, Field(ge=0, le=1, description=_AVERAGE)]


class ChunkedKnobs(PolicyKnobs):
    """Knobs of a loss that is computed some tokens at a time."""

    batch_size: int = Field(32, ge=1, description="units per optimizer step")
    chunk_positions: int = Field(
        512, ge=1, description="positions whose distributions are in memory at once"
    )


class DistillationKnobs(ChunkedKnobs):
    """Knobs of a student that is pulled towards a teacher at each token."""

    divergence: Divergence = "forward_kl"
    jsd_beta: float = Field(0.5, gt=0, lt=1, description="the teacher's share in `jsd`")
    top_k: int = Field(0, ge=0, description="ids that are compared at each token; 0: all")
    top_k_from: Literal["student", "teacher"] = Field(
        "student", description="whose most likely ids are compared"
    )
    rest: Rest = Field("tail", description="the other ids: one bucket, or left out")
    importance: Importance = "none"
    importance_cap: float = Field(2.0, gt=0, description="the greatest importance weight")
    average_rate: AverageRate = 0.0
    skip_tokens: int = Field(0, ge=0, description="first tokens of an answer without a loss")
    max_teacher_tokens: int = Field(
        10240, ge=2, description="a unit whose teacher reads more tokens is skipped"
    )
