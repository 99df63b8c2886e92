"""The knobs of self-play."""

from typing import Literal, Self

from pydantic import Field, model_validator

from recipes.policy_gradient.knobs import PolicyGradientKnobs


class Knobs(PolicyGradientKnobs):
    domain: str = Field(
        "recipes.self_play.examples.sums.domain:DOMAIN",
        pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$",
        description="package.module:NAME of the domain of tasks",
    )
    share: Literal["both", "solver_only"] = Field(
        "both", description="roles that train the adapter; both are always played with it"
    )
    proposer: Literal["model", "uniform"] = Field(
        "model", description="for ablations: tasks by chance instead of proposals"
    )
    rounds: int = Field(100, ge=1, description="rounds of the game")
    count: int = Field(8, ge=2, description="tasks proposed a round")
    plays: int = Field(8, ge=2, description="answers to each task that train")
    hint_plays: int = Field(2, ge=0, description="answers with a hint, which measure alone")
    frontier_shown: int = Field(8, ge=0, description="tasks that the designer's prompt lists")
    unique_rounds: int = Field(
        0, ge=0, description="a task of so many last rounds is a duplicate; 0: of this round"
    )
    designer_weight: float = Field(1.0, gt=0, description="of the designer's advantages")
    temperature: float = Field(1.0, gt=0, description="of both roles")

    @model_validator(mode="after")
    def _a_regret(self) -> Self:
        if self.proposer == "model" and not self.hint_plays:
            raise ValueError("hint_plays must be at least 1: a proposal earns its regret")
        return self
