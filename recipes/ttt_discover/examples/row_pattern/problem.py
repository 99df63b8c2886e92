"""Row-pattern packing: 26 circles in a square, built from 18 digits."""

# For small models on a CPU: the digits are sampled under `allowed_token_ids`, so that each answer
# has the right form. Its sums are not comparable with those of model-written programs.

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from recipes.ttt_discover.archive import Node, Solution
from recipes.ttt_discover.examples.packing import Packing, check_packing
from recipes.ttt_discover.examples.picture import draw_png
from recipes.ttt_discover.examples.row_pattern.pattern import (
    DIGITS,
    HEIGHTS,
    LENGTH,
    SHIFTS,
    canonical,
    is_pattern,
    packing_of,
    rows_text,
)
from recipes.ttt_discover.problem import Verified
from reefcommon.recipe_context import Context

PROMPT = "Rows of circles as digits."


@dataclass(frozen=True, slots=True)
class RowPattern:
    count: int

    @property
    def name(self) -> str:
        return f"row-pattern-{self.count}"

    def identity(self) -> Mapping[str, Any]:
        shape = {"digits": DIGITS, "length": LENGTH, "shifts": SHIFTS, "heights": HEIGHTS}
        return {"prompt": PROMPT, "count": self.count, **shape}

    def messages(self, parent: Node) -> list[dict[str, Any]]:
        # Short: a prompt costs the tiny model more than its answer.
        shown = "" if parent.seed else f" Before: {parent.solution.text}."
        return [{"role": "user", "content": f"{PROMPT}{shown}"}]

    async def verify(self, answer: str, ctx: Context) -> Verified:
        return self.score(answer)

    def score(self, answer: str) -> Verified:
        if not is_pattern(answer.strip()):
            return Verified(0.0, words=f"not {LENGTH} digits of {DIGITS}")
        digits = canonical(answer.strip())
        packing = packing_of(digits, self.count)
        if packing is None:
            return Verified(0.0, words=f"fewer than {self.count} circles")
        found = check_packing(packing.centers, packing.radii, self.count)
        if found.reason:
            return Verified(0.0, words=found.reason)
        words = rows_text(digits)
        solution = Solution(found.value, digits, words=words, figure=packing.figure())
        return Verified(found.value, solution, words)

    def check(self, figure: Mapping[str, Any]) -> Verified:
        found = check_packing(figure["centers"], figure["radii"], self.count)
        return Verified(found.value, words=found.reason)

    def picture(self, solution: Solution) -> bytes:
        packing = Packing.of_figure(solution.figure)
        return draw_png(packing, f"{self.name}: {solution.value:.4f}")


PROBLEM = RowPattern(26)
