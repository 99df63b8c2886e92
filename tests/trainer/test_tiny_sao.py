"""The example for the tiny model, through a real step process: what it proposes is what the serving node can load."""

from pathlib import Path

import pytest

from reefcommon.config import load
from reefcommon.ids import LoadId
from reefcommon.recipe import WeightRecipe
from reefkit.recipe_binding import bindings
from services.trainer.batches import write_batch
from services.trainer.child import ChildProcess
from services.trainer.ports import StepRequest
from tests.recipes.samples import sample

EXAMPLE = Path("recipes/sao/examples/tiny/serve.yaml")
pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


async def test_a_step_of_the_tiny_example_makes_an_adapter_that_serves(tmp_path):
    from transformers import AutoModelForCausalLM

    from reefstack.models import prepare
    from services.engine.lora import LoraLayers, load_adapter

    model_path = prepare("tiny", tmp_path / "models")
    (binding,) = bindings(load(EXAMPLE), WeightRecipe)
    process = ChildProcess(binding, model_path, tmp_path / "child.log", timeout_s=300, niceness=0)
    decision = binding.recipe.decide(
        [sample(i, score=i / 32, logprobs=(-5.557,) * 3) for i in range(32)], LoadId("run", 5)
    )
    batch = write_batch(tmp_path / "batch.jsonl", decision.batch)
    state = None
    for number in (1, 2):
        out = tmp_path / "states" / f"job-{number}"
        reply = await process.step(
            StepRequest(job_id=out.name, state=state, actor=None, adopt=None, batch=batch, out=out)
        )
        state = out
    await process.stop()
    assert reply.step == 2
    assert reply.proposes
    assert reply.metrics["policy_grad_norm"] > 0
    shapes = LoraLayers(AutoModelForCausalLM.from_pretrained(model_path)).shapes
    adapter = load_adapter("candidate", out / "adapter", shapes, max_rank=16)
    assert "lm_head" in adapter.deltas
    assert adapter.deltas["lm_head"].up.abs().max() > 0
