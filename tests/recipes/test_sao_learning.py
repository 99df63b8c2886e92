"""SAO learns, on one core, through its own functions; and its correction is what makes stale
experience usable. `sao_arms.py` tells the shares of ratio and mask.
"""

import pytest

from tests.recipes.bandit import tenth, write_model
from tests.recipes.sao_arms import curve

pytestmark = [pytest.mark.learning, pytest.mark.timeout(900)]

# Seeds 1 and 2 pass as well: they say the same, and cost half a minute to a minute and a half each.
SEEDS = (0,)


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    return write_model(tmp_path_factory.mktemp("bandit"))


@pytest.mark.parametrize("seed", SEEDS)
def test_sao_learns_a_bandit(model_path, seed):
    rewards = curve(model_path, seed, steps=220, policy_lr=5e-4)
    assert tenth(rewards, 0) <= 0.25
    assert tenth(rewards, -1) >= 0.9


@pytest.mark.parametrize("seed", SEEDS)
def test_at_a_lag_of_eight_the_correction_decides(model_path, seed):
    """The same experience, eight releases old at every step: corrected by ratio and mask it is
    learnt from, uncorrected it is not.
    """
    corrected = curve(model_path, seed, steps=240, lag=8, policy_lr=4e-4)
    assert tenth(corrected, -1) >= 0.9
    without = curve(model_path, seed, steps=240, lag=8, policy_lr=4e-4, correction="none")
    assert tenth(without, -1) <= 0.7


def test_the_same_seed_gives_the_same_curve(model_path):
    assert curve(model_path, 5, steps=15, policy_lr=5e-4) == curve(
        model_path, 5, steps=15, policy_lr=5e-4
    )
