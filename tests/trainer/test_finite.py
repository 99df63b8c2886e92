"""Numbers that are not finite: a step that leaves them is refused before it is saved."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from reefcommon.errors import Poison
from reefcommon.events import SampleReady
from reefcommon.recipe import StepResult
from services.trainer.batches import write_batch
from services.trainer.ports import StepRequest
from services.trainer.worker import Worker
from tests.recipes.samples import sample
from tests.trainer.counting import CountingLearner, CountingRecipe, Knobs

BAD = [float("nan"), float("inf"), float("-inf")]


class TensorLearner(CountingLearner):
    """Keeps one number in each place that a learner has; a sample's score above 100 puts `bad` into `place`."""

    place, bad = "", 0.0

    def __init__(self, model_path: Path) -> None:
        super().__init__(model_path)
        self.numbers = dict.fromkeys(("head", "moment", "exported"), 1.0)

    def step(self, batch: Sequence[SampleReady]) -> StepResult:
        if any((one.score or 0) > 100 for one in batch):
            self.numbers[self.place] = self.bad
        return super().step(batch)

    def save(self, directory: Path) -> None:
        super().save(directory)
        moments = {
            "state": {
                0: {"step": torch.tensor(3), "exp_avg": torch.tensor([0.0, self.numbers["moment"]])}
            }
        }
        head = {"weight": torch.full((4,), self.numbers["head"])}
        torch.save(
            {"head": head, "optimizer": {**moments, "param_groups": [{"lr": 0.1}]}},
            directory / "critic.pt",
        )

    def load(self, directory: Path, *, actor_from: Path | None = None) -> None:
        super().load(directory, actor_from=actor_from)
        saved = torch.load(directory / "critic.pt", weights_only=True)
        self.numbers["head"] = float(saved["head"]["weight"][0])

    def export(self, directory: Path) -> None:
        super().export(directory)
        if directory.name == "adapter":
            save_file(
                {"lora_A": torch.full((2, 2), self.numbers["exported"], dtype=torch.bfloat16)},
                directory / "adapter_model.safetensors",
            )


class TensorRecipe(CountingRecipe):
    def learner(self, model_path: Path) -> TensorLearner:
        return TensorLearner(model_path)


@pytest.fixture
def worker(tmp_path: Path) -> Worker:
    return Worker(TensorRecipe(Knobs()), tmp_path)


def request(tmp_path: Path, job: str, score: float, state: str | None = None) -> StepRequest:
    return StepRequest(
        job_id=job,
        state=tmp_path / state if state else None,
        actor=None,
        adopt=None,
        batch=write_batch(tmp_path.parent / f"{job}.jsonl", (sample(0, score=score),)),
        out=tmp_path / job,
    )


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("place", "named"),
    [
        ("head", "critic.pt, head.weight"),
        ("moment", "critic.pt, optimizer.state.0.exp_avg"),
        ("exported", "adapter/adapter_model.safetensors, lora_A"),
    ],
)
def test_a_step_that_leaves_them_is_refused(
    worker: Worker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    named: str,
    bad: float,
) -> None:
    """Nothing of it is kept, and the next batch goes on from the state before."""
    monkeypatch.setattr(TensorLearner, "place", place)
    monkeypatch.setattr(TensorLearner, "bad", bad)
    worker.handle(request(tmp_path, "job-1", 1.0))
    before = {path: path.read_bytes() for path in (tmp_path / "job-1").rglob("*") if path.is_file()}
    with pytest.raises(Poison, match=f"{named}: numbers that are not finite"):
        worker.handle(request(tmp_path, "job-2", 101.0, "job-1"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job-1"]
    assert {path: path.read_bytes() for path in before} == before
    fresh = Worker(TensorRecipe(Knobs()), tmp_path)  # the trainer stops a step process that refused
    assert fresh.handle(request(tmp_path, "job-3", 1.0, "job-1")).step == 2


def test_a_saved_state_with_them_is_set_aside(worker: Worker, tmp_path: Path) -> None:
    """Else every batch from then on would be refused for it."""
    worker.handle(request(tmp_path, "job-1", 1.0))
    torch.save({"head": {"weight": torch.tensor([float("nan")])}}, tmp_path / "job-1" / "critic.pt")
    fresh = Worker(TensorRecipe(Knobs()), tmp_path)
    with pytest.raises(
        Poison,
        match=r"the saved state job-1 holds critic.pt, head.weight: .* set aside, and the next batch starts without it",
    ):
        fresh.handle(request(tmp_path, "job-2", 1.0, "job-1"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["job-1.damaged"]
    assert json.loads((tmp_path / "job-1.damaged" / "critic.json").read_text()) == 1
