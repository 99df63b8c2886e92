"""The knobs of SDFT."""

from typing import Literal

from pydantic import Field

from recipes.distillation.knobs import DistillationKnobs

TEMPLATE = (
    "{prompt}\n\nFor this request somebody wrote the following answer:\n\n{demonstration}\n\n"
    "Answer the request yourself, in the same way."
)


class Knobs(DistillationKnobs):
    demonstration: str = Field(
        "recipes.distillation.messages:demonstration_in",
        description="function package.module:name, unit -> text or none; the default reads the"
        " report's metadata or feedback (`demonstration`)",
    )
    template: str = Field(
        TEMPLATE, description="the teacher's user message, from {prompt} and {demonstration}"
    )
    importance: Literal["none", "token", "sequence"] = Field(
        "sequence", description="weight against staleness: none, of each token, or of the answer"
    )
    average_rate: float = Field(
        0.01,
        ge=0,
        le=1,
        description="share of the policy in the teacher's moving average; 0: the base model",
    )
    skip_tokens: int = Field(3, ge=0, description="first tokens of an answer without a loss")
