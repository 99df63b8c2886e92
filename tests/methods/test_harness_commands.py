"""The commands of the harness recipes: arms spend alike, and their claims hold in each seed."""

import subprocess
import sys

import pytest

from tests.methods import gepa, harnesses


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_specialist_is_kept_and_hill_climbing_loses_it(seed):
    kept, lost = (gepa.run(select, seed, 400) for select in ("fronts", "best"))
    assert kept["best mean"] == pytest.approx(gepa.GOOD)
    assert lost["best mean"] == pytest.approx(gepa.BETWEEN)
    assert lost["specialists found"] > 0
    assert (kept["a specialist was a parent"], lost["a specialist was a parent"]) == (1.0, 0.0)
    assert 400 <= kept["answers"] < 400 + 14
    assert 400 <= lost["answers"] < 400 + 14


@pytest.mark.parametrize("name", harnesses.RECIPES)
def test_a_recipe_learns_the_style_by_words(name):
    found = harnesses.run(name, 0, 24)
    assert found["right before"] == 0.0
    assert found["right after"] > 0.2
    assert found["releases"] >= 1


def test_the_command_prints_its_table():
    done = subprocess.run(
        [sys.executable, "-m", "tests.methods.gepa", "--seeds", "0", "--calls", "60"], capture_output=True, text=True, check=True
    )  # fmt: skip
    assert '"fronts - best"' in done.stdout
    told = [
        sys.executable,
        "-m",
        "tests.methods.harnesses",
        "--seeds",
        "0",
        "--reports",
        "4",
        "--recipes",
        "ace",
    ]
    done = subprocess.run(told, capture_output=True, text=True, check=True)
    assert '"ace - guess, mean over the run"' in done.stdout
