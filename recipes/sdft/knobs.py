"""The knobs of SDFT."""

from pydantic import Field

from recipes.distillation.knobs import AverageRate, DistillationKnobs, Importance

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
    importance: Importance = "sequence"
    average_rate: AverageRate = 0.01
    skip_tokens: int = Field(3, ge=0, description="first tokens of an answer without a loss")
