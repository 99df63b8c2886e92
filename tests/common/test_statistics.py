"""Intervals cover, tests do not cry wolf, seeds do not repeat."""

import random
from itertools import pairwise, product
from math import sqrt
from operator import mul
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reefcommon.statistics import (
    independent_seed,
    lower_bound,
    lowest_p,
    mean_interval,
    sign_flip_test,
    student_quantile,
)
from tests.methods.table import student_interval


@pytest.mark.parametrize("mean", [0.1, 0.5, 0.9])
def test_interval_of_zeros_and_ones_covers_the_mean(mean: float) -> None:
    draw = random.Random(1)
    covered = 0
    for _ in range(200):
        _, low, high = mean_interval([float(draw.random() < mean) for _ in range(48)])
        covered += low <= mean <= high
    assert covered >= 0.9 * 200


def test_interval_of_shares_covers_the_mean() -> None:
    draw = random.Random(2)
    covered = 0
    for _ in range(100):
        _, low, high = mean_interval([draw.betavariate(2, 3) for _ in range(30)])
        covered += low <= 0.4 <= high
    assert covered >= 88


def test_equal_successes_still_have_a_width() -> None:
    mean, low, high = mean_interval([1.0] * 12)
    assert (mean, high) == pytest.approx((1.0, 1.0))
    assert 0.7 < low < 0.8


@pytest.mark.parametrize("mean", [0.1, 0.5, 0.95])
def test_interval_over_questions_covers_new_questions(mean: float) -> None:
    """24 questions of their own difficulty, four answers each: a draw is a question's mean."""
    draw, covered, naive = random.Random(4), 0, 0
    for _ in range(200):
        rates = [draw.betavariate(4 * mean, 4 * (1 - mean)) for _ in range(24)]
        answers = [[float(draw.random() < rate) for _ in range(4)] for rate in rates]
        _, low, high = mean_interval([sum(one) / 4 for one in answers])
        covered += low <= mean <= high
        _, low, high = mean_interval([answer for one in answers for answer in one])
        naive += low <= mean <= high
    assert covered >= 0.92 * 200
    assert naive < covered, "answers to one question are not independent"


def test_intervals_of_three_seeds_cover() -> None:
    """Three draws are few: the normal quantile with a first correction covers 91 %."""
    draw, covered, unbounded = random.Random(5), 0, 0
    for _ in range(1000):
        _, low, high = mean_interval([draw.betavariate(20, 20) for _ in range(3)])
        covered += low <= 0.5 <= high
        _, low, high = student_interval([draw.gauss(0, 1) for _ in range(3)])
        unbounded += low <= 0 <= high
    assert covered >= 930
    assert unbounded >= 930


@pytest.mark.parametrize(
    ("freedom", "t"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (23, 2.0687)]
)
def test_students_quantile_is_that_of_the_tables(freedom: int, t: float) -> None:
    assert student_quantile(freedom) == pytest.approx(t, abs=1e-4)


def test_no_hit_on_24_questions_bounds_the_rate_below_a_sixth() -> None:
    # However many answers each has: those to one question may all be alike.
    assert mean_interval([0.0] * 24)[2] == pytest.approx(0.151, abs=5e-4)


@pytest.mark.parametrize("values", [[], [1.0]])
def test_interval_needs_two_values(values: list[float]) -> None:
    with pytest.raises(ValueError, match="at least"):
        mean_interval(values)


def test_lower_bound_is_below_the_mean() -> None:
    assert lower_bound([0.1, 0.2, 0.3, 0.4], 0.95) < 0.25
    assert lower_bound([0.2] * 4, 0.95) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("effects", "p"),
    [([0.5] * 5, 1 / 32), ([0.1] * 4, 1 / 16), ([-0.1, 0.1], 1.0), ([], 1.0), ([0.0] * 9, 1.0)],
)
def test_sign_flip_test_on_cases_done_by_hand(effects: list[float], p: float) -> None:
    assert sign_flip_test(effects) == pytest.approx(p)


@pytest.mark.parametrize("n", [1, 5, 12, 13, 40, 300, 1200])
def test_the_lowest_p_is_that_of_equal_signs(n: int) -> None:
    assert sign_flip_test([1.0] * n) == pytest.approx(lowest_p(n))


@given(st.lists(st.integers(-6, 6).map(lambda sixths: sixths / 6), min_size=1, max_size=9))
def test_every_assignment_of_signs_counts_once(effects: list[float]) -> None:
    sixths = [round(effect * 6) for effect in effects]
    sums = [sum(map(mul, signs, sixths)) for signs in product((1, -1), repeat=len(sixths))]
    as_high = sum(one >= sum(sixths) for one in sums) / len(sums)
    assert sign_flip_test(effects) == pytest.approx(as_high if sum(sixths) > 0 else 1.0)


def test_more_effects_than_can_be_written_out_have_the_p_of_a_normal_sum() -> None:
    draw = random.Random(5)
    for n in (60, 400, 3000):
        effects = [draw.gauss(0.1, 1) for _ in range(n)]
        z = sum(effects) / sqrt(sum(effect**2 for effect in effects))
        assert sign_flip_test(effects) == pytest.approx(1 - NormalDist().cdf(z), rel=0.1, abs=1e-3)


@pytest.mark.parametrize("n", [8, 20])
def test_sign_flip_test_is_seldom_wrong_under_the_null(n: int) -> None:
    draw = random.Random(3)
    wrong = sum(sign_flip_test([draw.gauss(0, 1) for _ in range(n)]) <= 0.1 for _ in range(200))
    assert wrong <= 0.15 * 200


def test_seeds_of_different_draws_never_neighbour() -> None:
    seeds = sorted(
        independent_seed("eval", "cand", task, i) for task in range(200) for i in range(8)
    )
    assert min(b - a for a, b in pairwise(seeds)) > 256
    assert independent_seed("eval", "cand", 3, 1) == independent_seed("eval", "cand", 3, 1)
