"""The two problems: prompts, programs and digits, and the scores that they get."""

import asyncio
import json
import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from recipes.ttt_discover.archive import Node, Solution
from recipes.ttt_discover.examples.circle_packing.problem import (
    PROBLEM_26,
    PROBLEM_32,
    CirclePacking,
    last_program,
)
from recipes.ttt_discover.examples.packing import check_packing, largest_excess
from recipes.ttt_discover.examples.row_pattern.pattern import (
    HEIGHTS,
    SHIFTS,
    best_radii,
    canonical,
    centers_of,
    is_pattern,
    packing_of,
)
from recipes.ttt_discover.examples.row_pattern.problem import PROBLEM
from reefcommon.config import load
from reefcommon.recipe_context import Limits, Outcome
from reefcommon.recipe_loading import load_recipe
from reefkit.recipes.sandbox import Sandbox
from tests.recipes.seeking import FakeSeekContext, World

EXAMPLES = Path("recipes/ttt_discover/examples")
KNOWN = json.loads((Path(__file__).parent / "packings.json").read_text())
SEED = Node("seed-0", Solution(0.0, ""), seed=True)
FIVE_ROWS = "523" * 5 + "223"
QUICK = Limits(wall_s=20.0, cpu_s=20.0)


def verify(problem, answer):
    async def verified():
        return await problem.verify(answer, FakeSeekContext(World(None, None)))

    return asyncio.run(verified())


def program(body, thinking="Let me think."):
    return f"{thinking}\n```python\n{body}\n```\nThat is all."


def scripted(count, shift=0.0):
    found = KNOWN[str(count)]
    return program(
        f"centers = {found['centers']}\nradii = {found['radii']}\n\ndef run_packing():\n"
        f"    print('a note')\n    radii[0] += {shift!r}\n    return centers, radii, 99.0\n"
    )


@pytest.mark.parametrize("problem", [PROBLEM_26, PROBLEM_32])
def test_a_scripted_program_with_a_known_packing_gets_its_sum(problem):
    found = verify(problem, scripted(problem.count))
    assert found.reward == pytest.approx(KNOWN[str(problem.count)]["sum"], abs=1e-12)
    assert found.solution.words == found.words == "a note"
    assert found.solution.figure["strict_value"] <= found.reward
    assert found.solution.text.startswith("centers = ")
    assert verify(problem, scripted(problem.count, shift=1e-9)).reward == 0.0


@pytest.mark.parametrize("problem", [PROBLEM_26, PROBLEM_32])
def test_the_sandbox_gives_a_scripted_program_the_same_sum(problem, tmp_path):
    """Through the host's sandbox, as a seeker runs it."""
    context = SimpleNamespace(run=Sandbox(tmp_path).run)
    found = asyncio.run(problem.verify(scripted(problem.count), context))
    assert found.reward == pytest.approx(KNOWN[str(problem.count)]["sum"], abs=1e-12)


def test_a_program_with_numpy_arrays_and_a_future_import():
    body = (
        "from __future__ import annotations\nimport numpy as np\n\ndef run_packing():\n"
        "    side = (np.arange(2) + 0.5) / 2\n"
        "    centers = np.array([(x, y) for x in side for y in side])\n"
        "    return centers, np.full(4, 0.25), 1.0\n\nif __name__ == '__main__':\n    raise SystemExit"
    )
    assert verify(CirclePacking(4, 1.0, QUICK), program(body)).reward == 1.0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("no program at all", "no ```python block"),
        ("```python\n```", "no ```python block"),
        ("```python\ndef run_packing():", "no ```python block"),
        (program("def other(): pass"), "failed"),
        (program("def run_packing():\n    return 1"), "failed"),
        (program("raise SystemExit(0)"), "no packing"),
        (program("def run_packing():\n    return [], [], 0"), "centers must be a list of 4"),
        (
            program("def run_packing():\n    return [(0.5, 0.5)] * 4, [float('nan')] * 4, 0"),
            "finite",
        ),
        (
            program("import os\ndef run_packing():\n    print('x' * 99_999)\n    return [], [], 0"),
            "output",
        ),
        (program("def run_packing():\n    while True: pass"), "timeout"),
    ],
)
def test_a_program_that_gives_no_packing_scores_0(answer, words):
    found = verify(CirclePacking(4, 1.0, Limits(wall_s=3.0, cpu_s=3.0)), answer)
    assert (found.reward, found.solution) == (0.0, None)
    assert words in found.words


@pytest.mark.parametrize("status", ["failed", "timeout", "memory", "output", "killed"])
def test_a_program_that_met_a_limit_scores_0_whatever_it_printed(status):
    good = json.dumps([[[0.5, 0.5]], [0.5]])
    problem = CirclePacking(1, 1.0)
    assert problem.judge("x", Outcome("ok", 0, good)).reward == 0.5
    found = problem.judge("x", Outcome(status, 1, good, "why"))
    assert (found.reward, found.solution) == (0.0, None)
    assert found.words == f"{status}: why"


def test_the_last_block_counts():
    assert last_program("```python\na = 1\n```\nno:\n```python\na = 2\n```") == "a = 2"
    assert last_program("```py\na = 1\n```") is None


def test_the_prompt_has_the_verifier_the_target_and_the_parent():
    (first,) = PROBLEM_26.messages(SEED)
    assert "def check_packing" in first["content"]
    assert "2.636" in first["content"]
    assert "Improve" not in first["content"]
    parent = Node("n", Solution(2.5, "def run_packing(): ...", words="best 2.5"))
    (later,) = PROBLEM_26.messages(parent)
    assert later["content"].startswith(first["content"])
    for part in ("def run_packing(): ...", "2.5000000000", "0.1360000000", "best 2.5"):
        assert part in later["content"]
    assert PROBLEM_26.identity() != PROBLEM_32.identity()


def test_a_pattern_is_18_digits_from_2_to_7():
    assert is_pattern(FIVE_ROWS)
    assert not any(map(is_pattern, (FIVE_ROWS[:-1], FIVE_ROWS + "2", "8" * 18, "x" * 18, "")))
    assert len(SHIFTS) == len(HEIGHTS) == 5


def test_rows_stand_on_each_other_and_their_circles_are_spread():
    digits = "222" + "334" + "222" * 4  # heights 1, 0.8, 1, 1, 1, 1; the second row shifted
    centers = centers_of(digits, 13)
    assert centers[:2] == [(0.25, 0.5 / 5.8), (0.75, 0.5 / 5.8)]
    expected = [((k + 0.5 - 0.25) / 3, (1 + 0.4) / 5.8) for k in range(3)]
    assert [x for x, _ in centers[2:5]] == pytest.approx([x for x, _ in expected])
    assert centers[2][1] == pytest.approx(1.4 / 5.8)
    assert centers_of(digits, 14) is None
    assert centers_of(digits, 12) == centers[:12]


def test_equal_constructions_have_one_text():
    assert canonical("777" * 6) == "722" * 6
    assert centers_of("777" * 6, 26) == centers_of("722" * 6, 26)
    assert canonical("723456" * 3) == "723456" * 3


def test_radii_of_known_places():
    assert best_radii([(0.5, 0.5)]) == pytest.approx([0.5], abs=1e-7)
    assert sum(best_radii([(0.25, 0.5), (0.75, 0.5)])) == pytest.approx(0.5, abs=1e-7)
    grid = [((i + 0.5) / 5, (j + 0.5) / 5) for i in range(5) for j in range(5)]
    assert sum(best_radii(grid)) == pytest.approx(2.5, abs=1e-6)
    # Two near circles in the middle: one takes all that the other leaves.
    close = best_radii([(0.5, 0.5), (0.5, 0.6)])
    assert sum(close) == pytest.approx(0.1, abs=1e-7)


@pytest.mark.parametrize("seed", range(30))
def test_every_pattern_gives_a_valid_packing_or_too_few_circles(seed):
    import random

    draw = random.Random(seed)
    digits = "".join(draw.choice("234567") for _ in range(18))
    packing, found = packing_of(digits, 26), PROBLEM.score(f" {digits}\n")
    if sum(int(d) for d in digits[::3]) < 26:
        assert packing is None
        assert (found.reward, found.solution, found.words) == (0.0, None, "fewer than 26 circles")
        return
    assert largest_excess(packing) <= 0.0
    assert found.reward == check_packing(packing.centers, packing.radii, 26).strict_value > 1.0
    assert found.solution.text == canonical(digits)


def test_radii_cannot_be_better_at_their_places():
    """Duality by hand: no circle can grow without another rule being broken or a sum falling."""
    packing = packing_of("622422622422622422", 26)
    assert packing is not None
    radii = list(packing.radii)
    for i, (x, y) in enumerate(packing.centers):
        others = [j for j in range(26) if j != i]
        room = min(
            x, y, 1 - x, 1 - y,
            *(math.dist((x, y), packing.centers[j]) - radii[j] for j in others),
        )  # fmt: skip
        assert room - radii[i] < 1e-6


def test_a_wrong_form_scores_0():
    assert PROBLEM.score("12345").reward == 0.0
    assert PROBLEM.messages(SEED)[0]["content"].endswith("digits.")
    shown = PROBLEM.messages(Node("n", Solution(1.0, FIVE_ROWS)))
    assert FIVE_ROWS in shown[0]["content"]
    assert PROBLEM.picture(PROBLEM.score(FIVE_ROWS).solution).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "name",
    [
        "row_pattern/serve.yaml",
        "row_pattern/smollm2.yaml",
        "row_pattern/arms.yaml",
        "circle_packing/serve.yaml",
    ],
)
def test_an_example_loads(name):
    for binding in load(EXAMPLES / name).reef:
        recipe = load_recipe(binding.recipe, binding.knobs)
        assert recipe.name == "ttt_discover"
        assert recipe.problem.messages(SEED)
