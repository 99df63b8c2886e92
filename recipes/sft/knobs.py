"""The knobs of SFT."""

from typing import Literal

from pydantic import Field

from recipes.distillation.knobs import ChunkedKnobs


class Knobs(ChunkedKnobs):
    target: Literal["answer", "demonstration"] = Field(
        "answer",
        description="the policy's own accepted tokens, or the demonstration that a report brings,"
        " tokenised",
    )
    min_score: float = Field(1.0, description="an answer with at least this score is accepted")
