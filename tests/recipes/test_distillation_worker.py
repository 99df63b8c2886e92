"""Distillation in the step process: units with signals over JSON, saved averages, skipped steps."""

import pytest

from reefcommon.recipe_loading import load_recipe
from services.trainer.batches import batch_file
from services.trainer.ports import StepRequest
from services.trainer.worker import Worker
from tests.recipes.bandit import ALL_LINEAR, write_model
from tests.recipes.guided import SKILL_A, TEMPLATE, play, signalled, write_tokenizer

pytestmark = pytest.mark.engine

SIZES = {"batch_size": 8, "target_modules": ALL_LINEAR, "policy_lr": 1e-2, "template": TEMPLATE}
KNOBS = {
    "sdft": ("recipes.sdft.recipe:SDFTRecipe", {"skip_tokens": 0}),
    "sdpo": ("recipes.sdpo.recipe:SDPORecipe", {"group_size": 4, "success_threshold": 1.0}),
}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = write_model(tmp_path_factory.mktemp("codes"))
    write_tokenizer(path)
    return path


def work(model_path, name):
    import torch

    dotted, knobs = KNOBS[name]
    recipe = load_recipe(dotted, {**SIZES, **knobs})
    model = recipe.learner(model_path).policy.model
    units = play(model, SKILL_A, "aaaabbbb", 0, torch.Generator().manual_seed(0))
    return Worker(recipe, model_path), [signalled(recipe, unit) for unit in units]


def handle(worker, units, out, state=None):
    with batch_file(out.parent, units) as batch:
        job = {"job_id": out.name, "state": state, "actor": None, "adopt": None, "out": out}
        return worker.handle(StepRequest(batch=batch, **job))


def test_a_step_and_its_average_go_on_in_another_process(model_path, tmp_path):
    worker, units = work(model_path, "sdft")
    first = handle(worker, units, tmp_path / "one")
    assert (first.step, first.proposes, first.metrics["distill/trained_units"]) == (1, True, 8)
    assert (tmp_path / "one" / "teacher.safetensors").is_file()
    assert not (tmp_path / "one" / "adapter" / "teacher.safetensors").exists()
    same = handle(worker, units, tmp_path / "two", state=tmp_path / "one")
    other, _ = work(model_path, "sdft")
    resumed = handle(other, units, tmp_path / "again", state=tmp_path / "one")
    assert same == resumed
    for name in ("teacher.safetensors", "adapter_model.safetensors"):
        files = [(tmp_path / step / name).read_bytes() for step in ("two", "again")]
        assert files[0] == files[1]


def test_a_batch_without_a_right_attempt_makes_no_candidate(model_path, tmp_path):
    worker, units = work(model_path, "sdpo")
    wrong = [unit.model_copy(update={"score": 0.0}) for unit in units]
    skipped = handle(worker, wrong, tmp_path / "skip")
    assert (skipped.step, skipped.proposes, skipped.skipped) == (0, False, True)
    assert not (tmp_path / "skip" / "adapter").exists()
    right = [unit.model_copy(update={"score": 1.0}) for unit in units]
    after = handle(worker, right, tmp_path / "next", state=tmp_path / "skip")
    assert (after.step, after.proposes, after.skipped) == (1, True, False)
