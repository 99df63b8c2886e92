"""The commands of the distillations: arms on the same seeds, and figures that are shares."""

import importlib
import json

import pytest

from tests.recipes.guided import warm_start

pytestmark = [pytest.mark.learning, pytest.mark.timeout(900)]


def quickly_warmed(directory, **choices):
    return warm_start(directory, steps=2, **choices)


@pytest.mark.parametrize(
    ("name", "arguments", "arms", "differences"),
    [
        ("opd", [], ["opd", "sao"], ["opd - sao"]),
        (
            "sdft",
            ["--rates", "1e-3"],
            ["sft at 0.001", "sdft at 0.001"],
            ["A kept, sdft - sft at 0.001"],
        ),
        (
            "sdpo",
            ["--rates", "1e-3"],
            [f"{arm}, right at first {share}" for share in (0.1, 0.3) for arm in ("sdpo", "grpo")],
            ["mean rate, sdpo - grpo, 0.1", "mean rate, sdpo - grpo, 0.3"],
        ),
    ],
)
def test_a_command_shows_each_arm_and_their_difference(
    name, arguments, arms, differences, monkeypatch, capsys
):
    command = importlib.import_module(f"tests.methods.{name}")
    monkeypatch.setattr(command, "warm_start", quickly_warmed)
    if name == "opd":
        monkeypatch.setattr(command, "TEACHER_STEPS", 2)
    monkeypatch.setattr("sys.argv", [name, "--steps", "2", "--seeds", "0", "1", *arguments])
    command.main()
    table = json.loads(capsys.readouterr().out)
    for arm in arms:
        assert [*table[arm]["seeds"]] == ["0", "1"]
        for figures in table[arm]["seeds"].values():
            rates = [value for figure, value in figures.items() if figure != "updates to gain"]
            assert all(0 <= value <= 1 for value in rates)
    for difference in differences:
        mean, low, high = table[difference]["difference [low, high]"]
        assert low <= mean <= high
        assert table[difference]["lowest p that so many seeds can give"] == 0.25
