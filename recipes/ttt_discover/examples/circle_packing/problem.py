"""Circle packing: the model writes a program that places circles in the unit square."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from recipes.ttt_discover.archive import Node, Solution
from recipes.ttt_discover.examples import packing as verifier
from recipes.ttt_discover.examples.packing import Packing, check_packing, read_output
from recipes.ttt_discover.examples.picture import draw_png
from recipes.ttt_discover.problem import Verified
from reefcommon.recipe_context import Context, Limits, Outcome

SHOWN_OUTPUT = 500
# Runs the program as a file of its own: it may begin with `from __future__`, and its main part
# does not run. A thread for each core of each program would starve the others.
RUNNER = """\
import os, sys
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"
sys.path.insert(0, os.getcwd())
import json
from model_program import run_packing
found = run_packing()
centers = [[float(x) for x in center] for center in found[0]]
print("\\n" + json.dumps([centers, [float(radius) for radius in found[1]]]))
"""
_BLOCK = re.compile(r"```python[ \t]*\r?\n(.*?)```", re.DOTALL)


def instruction(count: int, target: float, limits: Limits) -> str:
    source = inspect.getsource(verifier)
    return f"""\
Place {count} circles in the unit square so that the sum of their radii is as great as possible. \
No circle may leave the square or overlap another. A sum of {target} would be a new record.

Write Python with this function:

def run_packing():
    # centers: {count} pairs (x, y); radii: {count} numbers
    return centers, radii, sum_of_radii

You may use numpy, scipy, cvxpy and math. Write helpers as functions of the module, without lambda.
Read and write no files and open no connections. The program has {limits.wall_s:g} seconds on one \
core and {limits.memory_mb} MB of memory.

The score is the sum of the radii as the verifier adds them up, or 0 if any rule is broken. The \
verifier:

```
{source}```

Think first. End with the whole program in one ```python block; only the last such block counts."""


def last_program(answer: str) -> str | None:
    """Return the last ```python block of an answer."""
    blocks = _BLOCK.findall(answer)
    return blocks[-1].strip() if blocks and blocks[-1].strip() else None


@dataclass(frozen=True, slots=True)
class CirclePacking:
    count: int
    target: float
    """Shown in the prompt; the search does not end when it is reached."""
    limits: Limits = field(default_factory=lambda: Limits(wall_s=530.0, cpu_s=530.0))

    @property
    def name(self) -> str:
        return f"circle-packing-{self.count}"

    def identity(self) -> Mapping[str, Any]:
        text = instruction(self.count, self.target, self.limits)
        return {"instruction": text, "runner": RUNNER, "limits": asdict(self.limits)}

    def messages(self, parent: Node) -> list[dict[str, Any]]:
        text = instruction(self.count, self.target, self.limits)
        if not parent.seed:
            gap = self.target - parent.value
            text += (
                f"\n\nImprove this program. Its score is {parent.value:.10f}, "
                f"{gap:.10f} below the target:\n\n```python\n{parent.solution.text}\n```\n\n"
                f"The end of its output:\n\n{parent.solution.words or '(none)'}"
            )
        return [{"role": "user", "content": text}]

    async def verify(self, answer: str, ctx: Context) -> Verified:
        program = last_program(answer)
        if program is None:
            return Verified(0.0, words="the answer has no ```python block")
        files = {"model_program.py": program}
        return self.judge(program, await ctx.run(RUNNER, files=files, limits=self.limits))

    def judge(self, program: str, outcome: Outcome) -> Verified:
        if outcome.status != "ok":
            return Verified(0.0, words=f"{outcome.status}: {outcome.stderr[-SHOWN_OUTPUT:]}")
        found = read_output(outcome.stdout, self.count)
        if found.reason or found.packing is None:
            return Verified(0.0, words=found.reason)
        printed = outcome.stdout.rstrip().rpartition("\n")[0].rstrip()[-SHOWN_OUTPUT:]
        figure = {**found.packing.figure(), "strict_value": found.strict_value}
        solution = Solution(found.value, program, words=printed, figure=figure)
        return Verified(found.value, solution, printed)

    def check(self, figure: Mapping[str, Any]) -> Verified:
        found = check_packing(figure["centers"], figure["radii"], self.count)
        return Verified(found.value, words=found.reason)

    def picture(self, solution: Solution) -> bytes:
        packing = Packing.of_figure(solution.figure)
        return draw_png(packing, f"{self.name}: {solution.value:.6f}")


# Best published sums: 2.635983 and 2.939573, at the same tolerance.
PROBLEM_26 = CirclePacking(26, target=2.636)
PROBLEM_32 = CirclePacking(32, target=2.940)
