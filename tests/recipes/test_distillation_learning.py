"""Distillation learns, on one core, through the recipes' own functions."""

import pytest

from reefcommon.recipe_loading import load_recipe
from tests.recipes.guided import ADAPTER, SKILL_A, TEMPLATE, learn, rate, warm_start

pytestmark = [pytest.mark.learning, pytest.mark.timeout(600)]

LONG = {"a": "3719", "b": "8042", "c": "5560", "d": "1983"}
WARM = {"steps": 200, "rows": 32}  # the hint is copied in 0.97 of the answers


def test_opd_reaches_half_of_its_teacher_from_nothing(tmp_path):
    base = warm_start(tmp_path / "base", digits=4, **WARM)
    shown = {"batch_size": 32, "target": "demonstration", **ADAPTER}
    sft = load_recipe("recipes.sft.recipe:SFTRecipe", shown)
    taught = learn(sft, base, LONG, steps=100, seed=0, enough=0.9)
    taught.learner.export(tmp_path / "teacher")
    knobs = {"teacher": str(tmp_path / "teacher"), "batch_size": 64, **ADAPTER}
    recipe = load_recipe("recipes.opd.recipe:OPDRecipe", knobs)
    learner = recipe.learner(base)
    assert rate(learner.policy.model, LONG) <= 0.001
    half = taught.rates[-1] / 2
    run = learn(recipe, base, LONG, steps=160, seed=0, learner=learner, enough=half)
    assert taught.rates[-1] >= 0.8
    assert run.rates[-1] >= half


def test_sdft_learns_from_demonstrations(tmp_path):
    base = warm_start(tmp_path, **WARM)
    knobs = {"batch_size": 16, "template": TEMPLATE, "skip_tokens": 0, **ADAPTER}
    recipe = load_recipe("recipes.sdft.recipe:SDFTRecipe", knobs)
    run = learn(recipe, base, SKILL_A, steps=120, seed=0, enough=0.9)
    assert run.rates[0] <= 0.2
    assert run.rates[-1] >= 0.8


def test_sdpo_learns_from_right_siblings(tmp_path):
    base = warm_start(tmp_path, right=SKILL_A, share=0.3, **WARM)
    knobs = {"batch_size": 32, "group_size": 8, "template": TEMPLATE, "top_k": 8, **ADAPTER}
    recipe = load_recipe("recipes.sdpo.recipe:SDPORecipe", knobs)
    run = learn(recipe, base, SKILL_A, steps=60, seed=0, group=8, enough=0.9)
    assert run.rates[0] <= 0.5
    assert run.rates[-1] >= 0.8
