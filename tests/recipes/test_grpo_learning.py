"""The control arm learns too."""

import pytest

from reefcommon.recipe_loading import load_recipe
from tests.recipes.bandit import ALL_LINEAR, tenth, train, write_model

pytestmark = [pytest.mark.learning, pytest.mark.timeout(900)]


def test_grpo_learns_a_bandit(tmp_path):
    knobs = {
        "batch_size": 32,
        "group_size": 8,
        "max_staleness": 8,
        "policy_lr": 5e-4,
        "entropy_coef": 0.03,
        "lora_r": 64,
        "lora_alpha": 64,
        "target_modules": ALL_LINEAR,
    }
    recipe = load_recipe("recipes.grpo.recipe:GRPORecipe", knobs)
    rewards = train(recipe, write_model(tmp_path), steps=220, seed=0, group=8)
    assert tenth(rewards, 0) <= 0.25
    assert tenth(rewards, -1) >= 0.8
