"""The table of an experiment: intervals over seeds, and differences of arms on the same seeds."""

import pytest

from tests.methods.table import arm, paired


def test_a_figure_that_no_seed_moves_has_no_interval():
    seeds = {seed: {"before": 0.9, "after": after} for seed, after in enumerate((0.3, 0.4, 0.6))}
    means = arm(seeds)["mean [low, high]"]
    assert means["before"] == [0.9]
    mean, low, high = means["after"]
    assert mean == pytest.approx(0.4333, abs=1e-4)
    assert 0.1 < low < 0.2
    assert 0.75 < high <= 1


def test_a_difference_in_three_seeds_may_have_an_interval_with_0_in_it():
    told = paired((0.7, 0.7, 0.6), (0.3, 0.1, 0.6))
    mean, low, high = told["difference [low, high]"]
    assert (mean, low, high) == pytest.approx((0.3333, -0.4256, 1.0922), abs=1e-3)
    assert told["p, one-sided"] == 0.25
    assert told["lowest p that so many seeds can give"] == 0.125


def test_an_arm_that_is_not_ahead_has_the_p_value_1():
    assert paired((0.1, 0.2), (0.2, 0.3))["p, one-sided"] == 1.0
