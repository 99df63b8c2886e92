"""The advantages of TTT-Discover against naive sums and known values."""

import math
import random

import pytest

from recipes.ttt_discover.advantages import (
    adaptive_beta,
    entropic,
    fold_kl,
    informative,
    kl_to_uniform,
    mean_baseline,
)


def naive_kl(rewards, beta):
    weights = [math.exp(beta * (r - max(rewards))) for r in rewards]
    shares = [w / sum(weights) for w in weights]
    return sum(q * (math.log(q) + math.log(len(rewards))) for q in shares if q)


@pytest.mark.parametrize("seed", range(10))
def test_beta_is_where_the_group_is_ln_2_from_uniform(seed):
    draw = random.Random(seed)
    rewards = [draw.gauss(0, 10 ** draw.uniform(-3, 2)) for _ in range(draw.randrange(3, 64))]
    beta = adaptive_beta(rewards)
    assert naive_kl(rewards, beta) == pytest.approx(math.log(2), abs=1e-9)
    assert kl_to_uniform(rewards, beta / 2) < math.log(2)


def test_beta_of_two_values_is_known():
    # One of four is better by 1: q = e^b / (e^b + 3), KL = ln 4 + sum q ln q = ln 2.
    beta = adaptive_beta([1.0, 0.0, 0.0, 0.0])
    q = math.exp(beta) / (math.exp(beta) + 3)
    rest = (1 - q) / 3
    assert math.log(4) + q * math.log(q) + 3 * rest * math.log(rest) == pytest.approx(math.log(2))


@pytest.mark.parametrize("rewards", [[1.0, 1.0], [1.0, 1.0, 0.0], [2.0, 2.0, 2.0, 1.0]])
def test_ties_that_no_beta_separates_get_the_greatest(rewards):
    assert naive_kl(rewards, 1e6) < math.log(2)
    assert adaptive_beta(rewards) == 1e6
    assert all(map(math.isfinite, entropic(rewards)))


def test_half_of_a_group_at_the_top_has_the_limit_as_its_beta():
    # KL tends to ln 2 from below.
    assert adaptive_beta([1.0, 1.0, 0.0, 0.0]) > 30


@pytest.mark.parametrize("seed", range(6))
def test_entropic_advantages_leave_one_out(seed):
    draw = random.Random(seed)
    rewards = [draw.random() for _ in range(8)]
    beta = 3.0
    weights = [math.exp(beta * r) for r in rewards]
    naive = [w / ((sum(weights) - w) / 7) - 1 for w in weights]
    assert entropic(rewards, beta) == pytest.approx(naive)
    shifted = [r + 5 for r in rewards]
    assert entropic(shifted) == pytest.approx(entropic(rewards))
    assert entropic([100 * r for r in rewards]) == pytest.approx(entropic(rewards), rel=1e-6)


def test_the_best_of_a_group_gains_and_the_rest_loses():
    advantages = entropic([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0])
    assert advantages[3] > 3
    assert all(-1 <= a < 0 for i, a in enumerate(advantages) if i != 3)
    assert entropic([0.5] * 4) == pytest.approx([0.0] * 4, abs=1e-11)


def test_great_differences_do_not_overflow():
    assert entropic([1e6, -1e6, 0.0], beta=1e6) == pytest.approx([1e12, -1, -1], rel=1e-6)


def test_the_control_arm_subtracts_the_mean():
    assert mean_baseline([1.0, 2.0, 6.0]) == pytest.approx([-2.0, -1.0, 3.0])


def test_constant_groups_are_dropped_unless_all_are():
    assert informative({2: [1.0, 0.0], 0: [1.0, 1.0], 1: [0.0, 3.0]}) == ([1, 2], False)
    assert informative({1: [0.0, 0.0], 0: [2.0, 2.0]}) == ([0], True)


def test_the_pull_to_the_base_against_a_naive_sum():
    behaviour = [[-1.0, -2.0, 0.0], [-0.5]]
    base = [[-1.5, -1.0, -9.0], [-2.5]]
    masks = [[1, 1, 0], [1]]
    folded, mean = fold_kl([2.0, -1.0], behaviour, base, masks, 0.1)
    gaps = [0.5, -1.0, 2.0]
    assert mean == pytest.approx(sum(gaps) / 3)
    assert folded[0] == pytest.approx([2 + 0.1 * (0.5 - 0.5), 2 + 0.1 * (0.5 + 1.0), 2.0])
    assert folded[1] == pytest.approx([-1 + 0.1 * (0.5 - 2.0)])


@pytest.mark.parametrize("seed", range(5))
def test_the_pull_adds_nothing_in_sum_and_is_off_without_a_coefficient(seed):
    draw = random.Random(seed)
    lengths = [draw.randrange(1, 6) for _ in range(5)]
    rows = [[[-draw.random() for _ in range(n)] for n in lengths] for _ in range(2)]
    masks = [[draw.randrange(2) for _ in range(n)] for n in lengths]
    plain = [draw.gauss(0, 1) for _ in lengths]
    folded, _ = fold_kl(plain, *rows, masks, 0.3)
    total = sum(a - p for row, p in zip(folded, plain, strict=True) for a in row)
    assert total == pytest.approx(0.0, abs=1e-9)
    off, _ = fold_kl(plain, *rows, masks, 0.0)
    assert off == [[p] * n for p, n in zip(plain, lengths, strict=True)]
    for row, mask, p in zip(folded, masks, plain, strict=True):
        assert all(a == p for a, bit in zip(row, mask, strict=True) if not bit)
