"""The command of self-play: its arms make equal calls, and its figures are shares."""

import pytest

from tests.methods.self_play import ARMS, COUNT, ROUND, at, run
from tests.recipes.letters import warm_start

pytestmark = [pytest.mark.learning, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return warm_start(tmp_path_factory.mktemp("letters"), steps=2)


def test_a_rate_between_two_rounds_is_linear():
    assert at([(0, 0.1), (10, 0.3)], 5) == pytest.approx(0.2)
    assert at([(0, 0.1), (10, 0.3)], 50) == 0.3


@pytest.mark.parametrize("name", ARMS)
def test_an_arm_spends_its_calls_and_no_more_than_a_round_above(base, name):
    figures = run(base, name, 1e-3, 0, 2)
    calls = figures.pop("calls")
    assert 2 * ROUND <= calls < 3 * ROUND
    assert figures.pop("updates") <= calls / COUNT
    assert all(0 <= value <= 1 for value in figures.values())


def test_the_same_seed_gives_the_same_figures(base):
    assert run(base, "self_play", 1e-3, 3, 2) == run(base, "self_play", 1e-3, 3, 2)
