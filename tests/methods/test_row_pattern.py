"""The command of the row patterns: its arms make equal calls, and its figures add up."""

import json

import numpy as np
import pytest

from tests.methods.row_pattern import interval, main
from tests.methods.row_policies import Linear

ARGUMENTS = ["--seeds", "0,1", "--steps", "4", "--groups", "2", "--rollouts", "6"]


def figures(capsys, *more):
    assert main([*ARGUMENTS, *more]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_arms_make_equal_calls_and_the_first_grid_is_the_same(capsys):
    told = figures(capsys)
    runs = {(one["arm"], one["seed"]): one for one in told["runs"]}
    assert len(runs) == 6
    assert {one["verifier_calls"] for one in runs.values()} == {48}
    assert {
        arm: runs[arm, 0]["trained_steps"] for arm in ("frozen", "mean_baseline", "entropic")
    } == {
        "frozen": 0,
        "mean_baseline": 4,
        "entropic": 4,
    }
    for seed in (0, 1):
        assert len({runs[arm, seed]["valid_first"] for arm in ("frozen", "entropic")}) == 1
    best = [runs["entropic", seed]["best"] for seed in (0, 1)]
    assert told["arms"]["entropic"]["best"]["mean"] == pytest.approx(sum(best) / 2, abs=1e-4)
    difference = told["differences_of_best"]["entropic - frozen"]
    frozen = [runs["frozen", seed]["best"] for seed in (0, 1)]
    assert difference["mean"] == pytest.approx(sum(best) / 2 - sum(frozen) / 2, abs=1e-4)
    assert difference["low"] <= difference["mean"] <= difference["high"]


def test_the_same_seed_gives_the_same_figures(capsys):
    first, again = (figures(capsys, "--arms", "entropic")["runs"] for _ in range(2))
    for one in (*first, *again):
        del one["seconds"]
    assert first == again


@pytest.mark.learning
@pytest.mark.timeout(300)
def test_the_entropic_arm_finds_more_than_the_frozen_arm(capsys):
    # three seeds with the mean baseline, as docs/methods.md shows them, take minutes
    assert main(["--arms", "frozen,entropic", "--seeds", "0,1", "--steps", "12"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {one["verifier_calls"] for one in told["runs"]} == {768}
    assert told["differences_of_best"]["entropic - frozen"]["mean"] >= 0.04
    runs = {(one["arm"], one["seed"]): one for one in told["runs"]}
    for seed in (0, 1):
        assert runs["entropic", seed]["mean"] >= runs["frozen", seed]["mean"] + 0.4


def test_an_interval_of_known_numbers():
    assert interval([1.0, 2.0, 3.0]) == {"mean": 2.0, "low": -0.4841, "high": 4.4841}
    assert interval([1.5]) == {"mean": 1.5}


def test_an_unknown_arm_is_an_error(capsys):
    with pytest.raises(SystemExit):
        main(["--arms", "other"])
    assert "unknown arms: other" in capsys.readouterr().err


def test_the_linear_copy_has_the_gradients_of_its_logits():
    draw = np.random.default_rng(0)
    policy = Linear("entropic", 0.01, 0.0, seed=0, hidden=draw.normal(size=(18, 5)))
    policy.weights[1][:] = draw.normal(size=policy.weights[1].shape)
    wanted = draw.normal(size=(18, 6))
    found = policy.gradients(wanted)
    for weight, gradient in zip(policy.weights, found, strict=True):
        for at in ((0, 0), (3, 4)):
            before = (policy.logits() * wanted).sum()
            weight[at] += 1e-6
            assert ((policy.logits() * wanted).sum() - before) / 1e-6 == pytest.approx(
                gradient[at], rel=1e-4
            )
            weight[at] -= 1e-6
