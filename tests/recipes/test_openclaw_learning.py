"""OpenClaw-RL learns a wish from complaints: hints reach it, votes alone do not."""

import pytest

from recipes.openclaw_rl.recipe import OpenClawRLRecipe
from tests.recipes.greeting_loop import TINY_KNOBS, Loop

pytestmark = [pytest.mark.learning, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def model_path():
    from reefstack.models import prepare

    return prepare("tiny-hint")


def learned(model_path, objective: str, steps: int, **more) -> tuple[float, float]:
    knobs = {**TINY_KNOBS, "objective": objective, "reward_baseline": "batch_mean", **more}
    recipe = OpenClawRLRecipe(OpenClawRLRecipe.knobs_type.model_validate(knobs))
    loop = Loop(recipe, model_path, tiny=True, seed=0, max_tokens=6)
    before = loop.liked()
    for _ in range(steps):
        loop.train()
    return before, loop.liked()


def test_hints_teach_what_the_user_likes(model_path):
    before, after = learned(model_path, "combine", 12)
    assert before <= 0.02
    assert after >= 0.8


def test_hints_alone_teach_by_jsd_as_well(model_path):
    before, after = learned(model_path, "opd", 9, policy_lr=5e-3, distillation="jsd")
    assert before <= 0.02
    assert after >= 0.3


def test_votes_alone_do_not(model_path):
    before, after = learned(model_path, "binary", 12)
    assert before <= 0.02
    assert after <= 0.3
