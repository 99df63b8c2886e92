"""`reef demo --recipe ttt-discover`: a model searches rows of 26 circles, and learns meanwhile."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from recipes.ttt_discover.archive import Solution
from recipes.ttt_discover.examples.packing import Packing
from recipes.ttt_discover.examples.picture import draw_text
from recipes.ttt_discover.examples.row_pattern.problem import PROBLEM
from reefcommon.demonstration import Arm, Demonstration, Measured, Stage

EXAMPLES = Path(__file__).parent / "examples" / "row_pattern"
_WIDTH = 36


async def solution_of(gateway_url: str, release_id: str) -> dict[str, Any] | None:
    """Return the `solution.json` of a release of the default scenario; None without a solution."""
    path = f"/reef/scenarios/default/releases/{release_id}/contents/solution/solution.json"
    async with httpx.AsyncClient(base_url=gateway_url, timeout=60, trust_env=False) as http:
        answer = await http.get(path)
    if answer.status_code == httpx.codes.NOT_FOUND:
        return None
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


@dataclass(kw_only=True)
class Packed(Demonstration):
    """Nobody visits: the figure of a release is the value of its solution, verified anew."""

    users: int = 0
    figure: str = "best sum of radii"
    arms: tuple[Arm, ...] = (
        Arm("entropic", knobs={"algorithm": "entropic"}),
        # Its own pull, chosen as that of serve.yaml: its advantages are smaller.
        Arm(
            "mean",
            "the mean of a group as its baseline",
            {"algorithm": "mean_baseline", "kl_coef": 0.01},
        ),
        Arm("frozen", "the policy never learns", {"algorithm": "frozen"}),
    )
    best: Solution | None = None

    async def measure(
        self, stage: Stage, release_id: str, measurement: int, n: int
    ) -> Measured:  # exact: neither draws nor questions
        told = await solution_of(stage.gateway_url, release_id)
        if told is None:
            return Measured(0.0, 0.0, 0.0, 0)
        value = PROBLEM.check(told["figure"]).reward
        self.best = Solution(value, told["text"], figure=told["figure"])
        return Measured(value, value, value, told["verifier_calls"])

    def panel(self) -> list[str]:
        if self.best is None:
            return []
        picture = draw_text(Packing.of_figure(self.best.figure), _WIDTH)
        return ["", *picture.splitlines(), f"{self.best.value:.6f}  {self.best.text}"]

    def files(self) -> Mapping[str, bytes]:
        return {} if self.best is None else {"best.png": PROBLEM.picture(self.best)}


def _tiny() -> Demonstration:
    return Packed(
        recipe="ttt_discover",
        model="tiny-count",
        about="a Llama of 0.1 M parameters searches rows of 26 circles, and learns while it does",
        signal="the sum of the radii of its 26 circles, 0 if they are fewer",
        config=EXAMPLES / "serve.yaml",
        max_tokens=18,
        batch=64,
        minutes=120,  # for a search that hangs: arms that are compared end at equal calls
        most=2.6,
        goal=2.3,
    )


DEMONSTRATIONS: Mapping[str, Callable[[], Demonstration]] = {"tiny-count": _tiny}
