"""OPD with a teacher that is asked over HTTP: the same step as with a teacher in the process."""

import asyncio
from types import SimpleNamespace

import pytest
import torch

from recipes.opd.served import ServedKnobs, ServedOPDRecipe
from reefcommon.errors import BadConfig, Poison
from reefcommon.events import Sampling, Signal
from reefcommon.ids import LoadId
from reefcommon.recipe_loading import load_recipe
from tests.recipes.bandit import ALL_LINEAR, START, write_model
from tests.recipes.samples import sample

SERVING = LoadId("run", 5)


class Endpoint:
    """Scores by a model, or by position; remembers what it was asked."""

    def __init__(self, model=None):
        self.model, self.asked = model, []

    async def score(self, tokens, *, purpose):
        self.asked.append((tuple(tokens), purpose))
        if self.model is None:
            return [-float(i) for i in range(1, len(tokens))]
        with torch.no_grad():
            logits = self.model(input_ids=torch.tensor([list(tokens)])).logits[0]
        logp = torch.log_softmax(logits, -1)
        return [float(logp[i - 1, token]) for i, token in enumerate(tokens) if i]


def signalled(recipe, unit, endpoint):
    ctx = SimpleNamespace(models={"big": endpoint})
    return unit.model_copy(update={"signal": asyncio.run(recipe.signal(unit, ctx))})


def test_the_teacher_grades_the_response_tokens_alone():
    recipe, endpoint = ServedOPDRecipe(ServedKnobs(teacher="big", batch_size=1)), Endpoint()
    unit = signalled(recipe, sample(score=None), endpoint)
    assert endpoint.asked == [((1, 2, 3, 4, 5), "opd teacher")]
    assert unit.signal.logprobs == (-2.0, -3.0, -4.0)
    assert recipe.decide([unit], SERVING).batch == (unit,)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"temperature": 0.7}, "teacher_knows_no_temperature"),
        ({"tokens": tuple(range(12)), "loss_mask": (1,) * 10, "logprobs": (-1.0,) * 10}, "teacher_sequence_too_long"),
        ({"untrainable": "no_tokens"}, "untrainable: no_tokens"),
        ({"sampling": (Sampling(top_p=0.9),)}, "truncated_sampling: top_p"),
        ({"load_id": "run:4"}, "stale"),
    ],
)  # fmt: skip
def test_what_the_teacher_cannot_grade_is_refused_with_the_reason(changes, reason):
    knobs = ServedKnobs(teacher="big", batch_size=1, max_teacher_tokens=11)
    recipe, endpoint = ServedOPDRecipe(knobs), Endpoint()
    unit = signalled(recipe, sample(**changes), endpoint)
    assert [why for _, why, _ in recipe.decide([unit], SERVING).refused] == [reason]
    assert bool(endpoint.asked) == (reason == "stale")


def test_a_unit_without_grades_is_refused():
    recipe = ServedOPDRecipe(ServedKnobs(teacher="big", batch_size=1))
    short = sample(1, signal=Signal(logprobs=(-1.0,)))
    refused = recipe.decide([sample(0), short], SERVING).refused
    assert [why for _, why, _ in refused] == ["not_graded", "not_graded"]


def test_a_served_teacher_must_be_named():
    with pytest.raises(BadConfig, match=r"reef\.teacher"):
        load_recipe("recipes.opd.served:ServedOPDRecipe", {})


@pytest.mark.engine
def test_the_step_is_that_of_a_teacher_in_the_process(tmp_path):
    from transformers import LlamaForCausalLM

    base = write_model(tmp_path / "base")
    teacher = LlamaForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.no_grad():
        for p in teacher.parameters():
            noise = torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel()))
            p.add_(0.05 * noise)
    teacher.save_pretrained(tmp_path / "teacher")
    same = {"batch_size": 2, "target_modules": ALL_LINEAR, "policy_lr": 1e-2}
    served = load_recipe("recipes.opd.served:ServedOPDRecipe", {"teacher": "big", **same})
    near = load_recipe(
        "recipes.opd.recipe:OPDRecipe", {"teacher": str(tmp_path / "teacher"), **same}
    )
    units = [
        sample(0, tokens=(START, 11, 3, 4, 5), loss_mask=(1, 0, 1), load_id="run:0"),
        sample(1, tokens=(START, 7, 8), loss_mask=(1,), logprobs=(-1.0,), load_id="run:0"),
    ]
    graded = [signalled(served, unit, Endpoint(teacher)) for unit in units]
    far_learner, near_learner = served.learner(base), near.learner(base)
    far, close = far_learner.step(graded).metrics, near_learner.step(units).metrics
    for name, value in far.items():
        assert value == pytest.approx(close[name], abs=1e-4), name
    mine, theirs = far_learner.policy.adapter(), near_learner.policy.adapter()
    assert all(torch.allclose(mine[name], theirs[name], atol=1e-5) for name in mine)
    with pytest.raises(Poison, match="not_graded"):
        far_learner.step(units)
