"""The knobs of SFT."""

from typing import Literal

from pydantic import Field

from recipes.policy_gradient.knobs import PolicyKnobs


class Knobs(PolicyKnobs):
    batch_size: int = Field(32, ge=1, description="units per optimizer step")
    target: Literal["answer", "demonstration"] = Field(
        "answer",
        description="the policy's own accepted tokens, or the demonstration that a report brings,"
        " tokenised",
    )
    min_score: float = Field(1.0, description="an answer with at least this score is accepted")
    chunk_positions: int = Field(
        512, ge=1, description="positions whose distributions are in memory at once"
    )
