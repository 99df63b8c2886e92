"""The start of a step is at fault: no sample pays for it."""

import pytest

from reefcommon.artifacts import BASE_CONTENT_ID
from reefcommon.errors import Unavailable
from services.trainer.batches import write_batch
from services.trainer.ports import CannotStart, StateDamaged, StepRequest
from services.trainer.worker import Worker
from tests.recipes.samples import sample
from tests.trainer.counting import CountingRecipe, Knobs
from tests.trainer.rig import Rig


@pytest.mark.parametrize("options", [{}, {"timeout_s": 120.0}])
async def test_samples_wait_while_the_learner_does_not_come_up(tmp_path, options):
    """As after a change of `lora_r`, in this process and in a child."""
    rig = Rig(tmp_path, warmup=99, attempts=1, **options)
    await rig.publish(5)
    for number in (0, 1):
        await rig.handlers.on_unit(sample(number))
    await rig.settle()
    await rig.restart()
    marker = tmp_path / "model" / "other_rank"
    marker.touch()
    for number in (2, 3):
        await rig.handlers.on_unit(sample(number))
    for _ in range(3):
        with pytest.raises(Unavailable, match="does not come up: the saved adapter has another"):
            await rig.settle()
    assert rig.bus.refusals == []
    marker.unlink()
    await rig.settle()
    assert [step.sample_ids for step in rig.bus.steps][-1] == ("smp-2", "smp-3")
    assert rig.bus.steps[-1].step == 2
    await rig.stop()


def request(tmp_path, job, **start):
    known = {"state": None, "actor": None, "adopt": None, "out": tmp_path / job}
    batch = write_batch(tmp_path / "batch.jsonl", [sample(0)])
    return StepRequest(job_id=job, batch=batch, **(known | start))


def test_a_policy_that_is_adopted_needs_no_saved_policy(tmp_path):
    """A roll-back is the way out of a state that the knobs do not fit."""
    Worker(CountingRecipe(Knobs()), tmp_path).handle(request(tmp_path, "one"))
    (tmp_path / "other_rank").touch()
    later, state = Worker(CountingRecipe(Knobs()), tmp_path), tmp_path / "one"
    with pytest.raises(CannotStart):
        later.handle(request(tmp_path, "two", state=state))
    found = later.handle(request(tmp_path, "two", state=state, adopt=BASE_CONTENT_ID))
    assert found.step == 1, "the count begins anew with the critic"


@pytest.mark.parametrize("name", ["critic.pt", "adapter_model.safetensors"])
def test_a_torn_file_is_set_aside(tmp_path, name):
    Worker(CountingRecipe(Knobs()), tmp_path).handle(request(tmp_path, "one"))
    (tmp_path / "one" / name).write_bytes(b"torn")
    with pytest.raises(StateDamaged, match=rf"{name}, which cannot be read"):
        Worker(CountingRecipe(Knobs()), tmp_path).handle(
            request(tmp_path, "two", state=tmp_path / "one")
        )
    assert (tmp_path / "one.damaged").is_dir()
