"""The evaluators of docs/write-a-recipe.md work as printed."""

import re
from pathlib import Path
from typing import Any

import pytest

from reefcommon.evaluator import Scored, as_tasks, implements
from reefkit.verifier import Verifier, VerifierFailed

PAGE = (Path(__file__).parents[2] / "docs" / "write-a-recipe.md").read_text()


@pytest.fixture
def printed() -> dict[str, Any]:
    (code,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        if "class Sums(" in block
    ]
    names: dict[str, Any] = {"__name__": "printed"}
    exec(code, names)
    return names


async def test_the_sums_are_scored_with_words(printed: dict[str, Any]) -> None:
    sums = printed["Sums"]()
    tasks = as_tasks(sums.tasks("default"))
    assert len(tasks) >= 5, "fewer give no verdict"
    assert (tasks[0].name, tasks[0].messages[0]["content"]) == ("20+7", "20 + 7 =")
    scores = await Verifier("s", sums.score, sums).scores(tasks[0], [" 27\n", "28"])
    assert scores == [Scored(1.0, "right"), Scored(0.0, "the sum is 27")]


async def test_the_longest_word_is_judged_by_its_file(
    printed: dict[str, Any], tmp_path: Path
) -> None:
    longest = printed["Longest"]()
    assert implements(longest, "judge_files")
    assert longest.exact
    verifier = Verifier("s", None, longest)
    with pytest.raises(VerifierFailed, match=r"word\.txt"):
        await verifier.files(tmp_path)
    (tmp_path / "word.txt").write_text("reef\n")
    assert await verifier.files(tmp_path) == Scored(4.0, "4 letters")
