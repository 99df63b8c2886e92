"""A problem: its prompts, its verifier, its picture."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Protocol

from recipes.ttt_discover.archive import Node, Solution
from reefcommon.errors import Poison
from reefcommon.recipe_context import Context


@dataclass(frozen=True, slots=True)
class Verified:
    """The verifier's word on an answer. `solution` None: invalid, with the reason in `words`.

    Raises Poison if a number is not finite.
    """

    reward: float
    solution: Solution | None = None
    words: str = ""

    def __post_init__(self) -> None:
        # A NaN loses every comparison, and a step that was kept with it could never be reported.
        value = 0.0 if self.solution is None else self.solution.value
        if not (isfinite(self.reward) and isfinite(value)):
            raise Poison(f"the verifier gave the reward {self.reward} and the value {value}")


class Problem(Protocol):
    @property
    def name(self) -> str: ...

    def identity(self) -> Mapping[str, Any]:
        """Return whatever makes it another problem if it differs: texts, sizes, limits."""

    def messages(self, parent: Node) -> list[dict[str, Any]]:
        """Return the prompt. A seed has no solution to show."""

    async def verify(self, answer: str, ctx: Context) -> Verified:
        """Score an answer. A wrong answer is a `Verified`, not an error."""

    def check(self, figure: Mapping[str, Any]) -> Verified:
        """Score a published figure anew. Exact: equal figures have equal rewards."""

    def picture(self, solution: Solution) -> bytes:
        """Draw a solution as PNG."""
