"""Device and number type of every learner: a step of each on one batch.

No GPU is needed to find a tensor on the wrong device: with `meta` as torch's default device, a tensor
that names no device has no numbers, and the step fails.
"""

import pytest
import torch

from recipes.sao.knobs import Knobs as SAOKnobs
from reefcli.commands.recipes import modules, recipes_in
from reefcommon.errors import Unavailable
from reefcommon.events import Sampling, Signal
from reefcommon.recipe import WeightRecipe
from reefcommon.recipe_loading import load_recipe
from tests.recipes.bandit import ALL_LINEAR, START, write_model
from tests.recipes.guided import TEMPLATE, write_tokenizer
from tests.recipes.samples import sample

pytestmark = pytest.mark.engine

LEARNERS = {
    "best_of.recipe:BestOfRecipe": {"batch_size": 8, "group_size": 4, "keep": 4, "min_score": 0.0},
    "grpo.recipe:GRPORecipe": {"batch_size": 8, "group_size": 4, "entropy_coef": 0.01},
    "guidance.recipe:GuidanceRecipe": {"groups_per_step": 2, "rollouts_per_group": 4},
    "opd.recipe:OPDRecipe": {"teacher": "{adapter}", "top_k": 4},
    "opd.served:ServedOPDRecipe": {"teacher": "big"},
    "openclaw_rl.recipe:OpenClawRLRecipe": {"teacher_top_k": 5},
    "sao.recipe:SAORecipe": {"critic_warmup_steps": 0, "critic_width": 16},
    "sdft.recipe:SDFTRecipe": {"template": TEMPLATE, "average_rate": 0.5, "skip_tokens": 0},
    "sdpo.recipe:SDPORecipe": {"template": TEMPLATE, "batch_size": 8, "group_size": 4},
    "self_play.recipe:SelfPlayRecipe": {},
    "sft.recipe:SFTRecipe": {"min_score": 0.0},
    "ttt_discover.recipe:TTTDiscoverRecipe": {"groups_per_step": 2, "rollouts_per_group": 4},
}


@pytest.fixture(scope="module")
def model_path(tmp_path_factory):
    path = write_model(tmp_path_factory.mktemp("codes"))
    write_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def adapter(model_path, tmp_path_factory):
    path = tmp_path_factory.mktemp("teacher")
    recipe("sao.recipe:SAORecipe", lora_r=3).learner(model_path).export(path)
    return path


def recipe(name, adapter="", **changes):
    knobs = {"target_modules": ALL_LINEAR, "policy_lr": 1e-2, **LEARNERS[name], **changes}
    if knobs.get("teacher") == "{adapter}":
        knobs["teacher"] = str(adapter)
    return load_recipe(f"recipes.{name}", knobs)


def batch():
    """Two prompts, four answers each, with whatever any recipe asks for."""
    codes = ((3, 7), (8, 0), (5, 5, 1), (1,))
    teacher = ({"role": "user", "content": "b[80"},)
    return [
        sample(
            i,
            tokens=(START, 11 + i // 4, *codes[i % 4]),
            prompt_length=2,
            loss_mask=(1,) * len(codes[i % 4]),
            logprobs=(-3.2,) * len(codes[i % 4]),
            score=float(i % 2),
            sampling=(Sampling(),),
            messages=({"role": "user", "content": "b"}, {"role": "assistant", "content": "80"}),
            metadata={"demonstration": "80", "group": i // 4, "role": "solver"},
            signal=Signal(
                score=float(i % 2), teacher=teacher, logprobs=(-2.0,) * len(codes[i % 4])
            ),
        )
        for i in range(8)
    ]


def test_every_learner_is_tried():
    classes = {one.recipe for module in modules("recipes") for one in recipes_in(module)}
    weights = {name for name in classes if issubclass(_class(name), WeightRecipe)}
    assert weights == {f"recipes.{name}" for name in LEARNERS}


def _class(dotted):
    module, _, name = dotted.partition(":")
    return getattr(__import__(module, fromlist=[name]), name)


@pytest.mark.parametrize("name", LEARNERS)
def test_a_step_makes_no_tensor_on_the_default_device(name, model_path, adapter, tmp_path):
    learner = recipe(name, adapter, prompt_gradient=False).learner(model_path)
    learner.step(batch())  # the optimizer makes its counters on the CPU, on any device
    with torch.device("meta"):
        result = learner.step(batch())
        learner.save(tmp_path)
        learner.export(tmp_path / "adapter")
        learner.load(tmp_path)
        learner.adopt(tmp_path / "adapter")
    assert result.step == 2
    assert all(p.device.type == "cpu" for p in learner.policy.model.parameters())


@pytest.mark.parametrize("name", LEARNERS)
def test_a_base_in_bfloat16_trains_a_float32_adapter(name, model_path, adapter, tmp_path):
    whole, half = (
        recipe(name, adapter, dtype=dtype).learner(model_path) for dtype in ("float32", "bfloat16")
    )
    before = {key: value.clone() for key, value in half.policy.adapter().items()}
    exact, rough = whole.step(batch()).metrics, half.step(batch()).metrics
    base = [p for p in half.policy.model.parameters() if not p.requires_grad]
    assert {p.dtype for p in base} == {torch.bfloat16}
    now = half.policy.adapter()
    assert any(not torch.equal(value, now[key]) for key, value in before.items())
    assert {value.dtype for value in now.values()} == {torch.float32}
    moments = [value["exp_avg"] for value in half.policy.optimizer.state.values()]
    assert {value.dtype for value in moments} == {torch.float32}
    for key, value in exact.items():
        assert rough[key] == pytest.approx(value, rel=0.1, abs=0.02), key
    half.export(tmp_path)
    whole.adopt(tmp_path)
    assert all(torch.equal(value, whole.policy.adapter()[key]) for key, value in now.items())


def test_auto_is_float32_on_the_cpu_and_bfloat16_on_a_gpu(monkeypatch):
    from recipes.policy_gradient.compute import Compute

    def chosen(**knobs):
        one = Compute.of(SAOKnobs(**knobs))
        return one.device.type, str(one.dtype)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chosen() == ("cpu", "torch.float32")
    with pytest.raises(Unavailable, match="torch finds no GPU"):
        chosen(device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert chosen() == ("cuda", "torch.bfloat16")
    assert chosen(device="cpu") == ("cpu", "torch.float32")
    assert chosen(dtype="float32") == ("cuda", "torch.float32")


def test_a_gpu_that_is_not_there_is_waited_for(model_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Unavailable, match="set it to auto or cpu"):
        recipe("sao.recipe:SAORecipe", device="cuda").learner(model_path)
