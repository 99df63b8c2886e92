"""A problem: its prompts, its verifier, its picture."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from recipes.ttt_discover.archive import Node, Solution
from reefcommon.recipe_context import Context


@dataclass(frozen=True, slots=True)
class Verified:
    """The verifier's word on an answer. `solution` None: invalid, with the reason in `words`."""

    reward: float
    solution: Solution | None = None
    words: str = ""


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
