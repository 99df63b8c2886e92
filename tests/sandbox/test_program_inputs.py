"""Files and limits that no program can have: a mistake of the recipe, which does not pass with time."""

import math

import pytest

from reefcommon.errors import Poison
from reefcommon.recipe_context import Limits
from reefkit.recipes.sandbox import Sandbox, check_limits, checked_files


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"a": "x", "a/b": "y"}, "'a' as a file and as a folder"),
        ({"a/b/c": "x", "a": "y"}, "'a' as a file and as a folder"),
        ({"stdin/x": "y"}, "'stdin' as a file and as a folder"),
        ({"program.py/x": "y"}, r"'program.py' as a file and as a folder"),
        ({"n" * 300: "x"}, "no name that a folder takes"),
        ({"é" * 200: "x"}, "no name that a folder takes"),
        ({".": "x"}, "no name that a folder takes"),
        ({"": "x"}, "not a path"),
        ({"../x": "x"}, "not a path"),
        ({"/x": "x"}, "not a path"),
        ({"a\x00": "x"}, "not a path"),
        ({"a": None}, "is a text, not NoneType"),
        ({"a": b"x"}, "is a text, not bytes"),
        ({"a": "é" * 600_000}, r"have 1200001 bytes; Limits.file_mb is 1"),
        ({f"f{number}": "x" * 300_000 for number in range(4)}, r"have 1200001 bytes"),
    ],
)
async def test_files_that_cannot_lie_in_a_folder(tmp_path, files, words):
    with pytest.raises(Poison, match=words):
        await Sandbox(tmp_path).run("1", files=files, limits=Limits(file_mb=1))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["program", "stdin", "a"])
def test_text_that_is_no_utf8_is_still_written(place):
    assert checked_files({place: "x\ud800"}, Limits()) == {place: "x?"}


WRONG = {
    "wall_s": [0, -1, math.nan, math.inf, 1e30, "1"],
    "cpu_s": [0.0, -1, math.nan, math.inf, 1e30, None],
    "memory_mb": [0, -5, 1.5, 10**12, math.nan],
    "file_mb": [0, -1, 10**13, "64"],
    "output_kb": [-1, 0.5, 10**12],
    "processes": [-1, 10**9, 1.0, "x"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
async def test_a_limit_that_is_none(tmp_path, name, value):
    with pytest.raises(Poison, match=rf"Limits.{name} is a number from"):
        await Sandbox(tmp_path).run("1", limits=Limits(**{name: value}))


@pytest.mark.parametrize(
    "limits", [Limits(), Limits(0.5, 1, 16, 1, 0, 1024), Limits(wall_s=7 * 86400.0)]
)
def test_limits_that_are(limits):
    check_limits(limits)
