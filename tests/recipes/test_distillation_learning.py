"""Distillation learns, on one core, through the recipes' own functions."""

import pytest

from reefcommon.recipe_loading import load_recipe
from tests.recipes.guided import SKILL_A, TEMPLATE, learn, rate, warm_start

pytestmark = [pytest.mark.learning, pytest.mark.timeout(600)]

LONG = {"a": "3719", "b": "8042", "c": "5560", "d": "1983"}
ADAPTER = {"lora_r": 16, "lora_alpha": 16, "policy_lr": 3e-3}


def test_opd_reaches_half_of_its_teacher_from_nothing(tmp_path):
    base = warm_start(tmp_path / "base", digits=4)
    shown = {"batch_size": 16, "target": "demonstration", **ADAPTER}
    taught = learn(load_recipe("recipes.sft.recipe:SFTRecipe", shown), base, LONG, steps=80, seed=0)
    taught.learner.export(tmp_path / "teacher")
    knobs = {"teacher": str(tmp_path / "teacher"), "batch_size": 32, **ADAPTER}
    recipe = load_recipe("recipes.opd.recipe:OPDRecipe", knobs)
    learner = recipe.learner(base)
    assert rate(learner.policy.model, LONG) <= 0.001
    run = learn(recipe, base, LONG, steps=120, seed=0, learner=learner)
    assert taught.rates[-1] >= 0.8
    assert run.rates[-1] >= taught.rates[-1] / 2


def test_sdft_learns_from_demonstrations(tmp_path):
    base = warm_start(tmp_path)
    knobs = {"batch_size": 16, "template": TEMPLATE, "skip_tokens": 0, **ADAPTER}
    run = learn(
        load_recipe("recipes.sdft.recipe:SDFTRecipe", knobs), base, SKILL_A, steps=120, seed=0
    )
    assert run.rates[0] <= 0.2
    assert run.rates[-1] >= 0.8


def test_sdpo_learns_from_right_siblings(tmp_path):
    base = warm_start(tmp_path, right=SKILL_A, share=0.3)
    knobs = {"batch_size": 32, "group_size": 8, "template": TEMPLATE, "top_k": 8, **ADAPTER}
    run = learn(
        load_recipe("recipes.sdpo.recipe:SDPORecipe", knobs),
        base,
        SKILL_A,
        steps=120,
        seed=0,
        group=8,
    )
    assert run.rates[0] <= 0.5
    assert run.rates[-1] >= 0.8
