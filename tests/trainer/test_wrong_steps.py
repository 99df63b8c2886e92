"""Learners that return, raise or leave behind what a step may not: their samples, or nothing, is refused."""

import os
import sys
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from reefcommon.errors import Poison, Transient, Unavailable
from reefcommon.recipe import StepResult
from reefkit.jobs.schema import dump
from services.trainer import child
from services.trainer.batches import write_batch
from services.trainer.ports import StepRequest
from services.trainer.worker import MAX_METRICS, Worker, checked
from tests.recipes.samples import sample
from tests.trainer.counting import CountingLearner, CountingRecipe, Knobs
from tests.trainer.rig import Rig

WRONG = [
    None,
    {"step": 1},
    StepResult(step="abc"),  # type: ignore[arg-type]
    StepResult(step=1.5),  # type: ignore[arg-type]
    StepResult(step=float("inf")),  # type: ignore[arg-type]
    StepResult(step=None),  # type: ignore[arg-type]
    StepResult(step=-1),
    StepResult(step=2**53),
    StepResult(step=10**30),
    StepResult(step=1, action="maybe"),  # type: ignore[arg-type]
    StepResult(step=1, metrics={"a": None}),  # type: ignore[dict-item]
    StepResult(step=1, metrics={"a": "high"}),  # type: ignore[dict-item]
    StepResult(step=1, metrics={"a": 10**400}),
    StepResult(step=1, metrics={"\ud800": 1.0}),
    StepResult(step=1, metrics=[1]),  # type: ignore[arg-type]
    StepResult(step=1, metrics={f"m{number}": 1.0 for number in range(MAX_METRICS + 1)}),
]


@pytest.mark.parametrize("result", WRONG, ids=lambda result: str(result)[:60])
def test_a_wrong_result_is_refused_with_its_reason(result: object) -> None:
    with pytest.raises(Poison, match=r"^step\(\) returned "):
        checked(result)


def test_a_result_is_read_as_plain_numbers() -> None:
    metrics: dict[Any, Any] = {"a": True, 7: 2, "nan": float("nan"), "inf": float("inf")}
    step, kept, skipped = checked(StepResult(True, metrics))
    assert orjson.dumps([step, kept, skipped]) == b'[1,{"a":1.0,"7":2.0},false]'


class Wrong(CountingLearner):
    result: object = None

    def step(self, batch: Any) -> Any:
        return type(self).result


class WrongRecipe(CountingRecipe):
    def learner(self, model_path: Any) -> Any:
        return Wrong(model_path)


@pytest.mark.parametrize("result", WRONG[:4], ids=lambda result: str(result)[:60])
async def test_a_wrong_result_leaves_a_job_store_that_can_be_read(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, result: object
) -> None:
    monkeypatch.setattr(Wrong, "result", result)
    rig = Rig(tmp_path)
    rig.loop.executor.process._worker = Worker(WrongRecipe(Knobs()), tmp_path)
    await rig.publish(5)
    await rig.handlers.on_unit(sample(0))
    await rig.handlers.on_unit(sample(1))
    await rig.settle()
    assert {r.reason.partition(" returned")[0] for r in rig.bus.refusals} == {
        "the step failed: step()"
    }
    await rig.restart()
    assert rig.store.current(rig.key) is None
    await rig.stop()


@pytest.mark.parametrize("step", ["abc", 1.5, None])
async def test_a_job_that_could_not_be_read_back_is_not_written(
    tmp_path: Any, step: object
) -> None:
    rig = Rig(tmp_path)
    await rig.publish(5)
    await rig.handlers.on_unit(sample(0))
    await rig.handlers.on_unit(sample(1))
    await rig.loop.once()
    job = rig.store.current(rig.key)
    object.__setattr__(job, "step", step)
    with pytest.raises(ValueError, match="step"):
        dump(job)
    await rig.stop()


ANSWERS = (
    "import sys; sys.stdin.readline(); sys.stdout.buffer.write(open(sys.argv[1], 'rb').read());"
    " sys.stdout.flush(); sys.stdin.read()"
)
"""A step process that answers with a file."""


@pytest.mark.parametrize(
    ("line", "error", "words"),
    [
        (b'{"ok":{"step":99,"proposes":true,"metrics":{}}}\n', Transient, "another question"),
        (b'{"job":"other","ok":{"step":1,"proposes":true,"metrics":{}}}\n', Transient, "another"),
        (b'{"job":"j"}\n', Transient, "another question"),
        (b"nonsense\n", ValueError, "invalid literal"),
        (b"x" * (1 << 25) + b"\n", ValueError, "limit"),
    ],
    ids=["no job", "other job", "nothing", "no JSON", "too long"],
)
async def test_an_answer_that_is_none_ends_the_process(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, line: bytes, error: Any, words: str
) -> None:
    """The next step is asked of a new one, so that no answer is taken for another."""
    (tmp_path / "line").write_bytes(line)
    real = child.asyncio.create_subprocess_exec

    async def start(*_: Any, **options: Any) -> Any:
        return await real(sys.executable, "-c", ANSWERS, str(tmp_path / "line"), **options)

    monkeypatch.setattr(child.asyncio, "create_subprocess_exec", start)
    binding = SimpleNamespace(dotted="a:B", key="k", recipe=SimpleNamespace(knobs=Knobs()))
    process = child.ChildProcess(binding, tmp_path, tmp_path / "log", 60.0, 0)  # type: ignore[arg-type]
    request = StepRequest(
        job_id="j", state=None, actor=None, adopt=None, batch=tmp_path / "b", out=None
    )
    with pytest.raises(error, match=words):
        await process.step(request)
    assert process._child is None


async def test_a_step_that_fails_on_a_full_disk_costs_no_batch(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, timeout_s=120.0, attempts=1)
    await rig.publish(5)
    for number in range(2):
        await rig.handlers.on_unit(sample(number, score=-5))
    with monkeypatch.context() as patch:
        patch.setattr(child.shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
        with pytest.raises(Unavailable, match=r"the step failed: OverflowError.*the disk is full"):
            await rig.settle()
    assert rig.bus.refusals == []
    await rig.stop()


class Forking(CountingLearner):
    def step(self, batch: Any) -> StepResult:
        if os.fork() == 0:
            sys.stdout.flush()
        return super().step(batch)


class ForkingRecipe(CountingRecipe):
    def learner(self, model_path: Any) -> Any:
        return Forking(model_path)


def test_a_learner_that_forks_is_answered_once(tmp_path: Any) -> None:
    worker = Worker(ForkingRecipe(Knobs()), tmp_path)
    request = StepRequest(
        job_id="j",
        state=None,
        actor=None,
        adopt=None,
        batch=write_batch(tmp_path / "batch.jsonl", (sample(0),)),
        out=tmp_path / "j",
    )
    reply = worker.handle(request)
    with (tmp_path / "answers").open("a") as stream:
        stream.write("answered\n")
    pid, status = os.wait()
    assert (pid > 0, status, reply.step) == (True, 0, 1)
    assert (tmp_path / "answers").read_text() == "answered\n"
