"""The step process dies, hangs, or is given what nobody can learn from."""

import asyncio
import os
import re
import signal
from types import SimpleNamespace

import pytest
import uvloop

from reefcommon.errors import Transient, Unavailable
from services.trainer import child
from tests.recipes.samples import sample
from tests.trainer.rig import Rig


async def arrive(rig, scores, first=0):
    for number, score in enumerate(scores):
        await rig.handlers.on_unit(sample(first + number, score=score))


async def ready(tmp_path, **options):
    rig = Rig(tmp_path, **({"timeout_s": 120.0} | options))
    await rig.publish(5)
    return rig


async def test_a_process_that_dies_is_started_again(tmp_path):
    rig = await ready(tmp_path)
    await arrive(rig, (1, -2))
    with pytest.raises(Transient, match="ended with code 9: about to die"):
        await rig.settle()
    await rig.settle()
    assert [step.sample_ids for step in rig.bus.steps] == [("smp-0", "smp-1")]
    await rig.stop()


async def test_a_process_that_dies_on_a_full_disk_costs_no_batch(tmp_path, monkeypatch):
    """It is not one of the tries after which the samples are given up."""
    rig = await ready(tmp_path, attempts=1)
    await arrive(rig, (1, -2))
    with monkeypatch.context() as patch:
        patch.setattr(child.shutil, "disk_usage", lambda _path: SimpleNamespace(free=4096))
        with pytest.raises(Unavailable, match=r"ended with code 9: about to die; the disk is full"):
            await rig.settle()
    await rig.settle()
    assert [step.sample_ids for step in rig.bus.steps] == [("smp-0", "smp-1")]
    await rig.stop()


async def test_a_process_that_is_killed_between_steps(tmp_path):
    rig = await ready(tmp_path, warmup=99)
    await arrive(rig, (1, 1))
    await rig.settle()
    os.kill(rig.loop.executor.process._child.pid, signal.SIGKILL)
    await arrive(rig, (1, 1), first=2)
    with pytest.raises(Transient, match="ended with code -9"):
        await rig.settle()
    await rig.settle()
    assert [step.step for step in rig.bus.steps] == [1, 2]
    await rig.stop()


def test_a_process_that_was_killed_long_ago_under_the_loop_of_the_service(tmp_path):
    """uvloop, which the service runs on, answers a write to a pipe that it has closed with an error of its own kind."""

    async def killed() -> None:
        rig = await ready(tmp_path, warmup=99)
        await arrive(rig, (1, 1))
        await rig.settle()
        child = rig.loop.executor.process._child
        os.kill(child.pid, signal.SIGKILL)
        await child.wait()
        while not child.stdin.is_closing():
            await asyncio.sleep(0.01)
        await arrive(rig, (1, 1), first=2)
        with pytest.raises(Transient, match="ended with code -9"):
            await rig.settle()
        await rig.settle()
        assert [step.step for step in rig.bus.steps] == [1, 2]
        await rig.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(killed())


async def test_a_device_that_is_away_costs_no_batch(tmp_path):
    rig = await ready(tmp_path, attempts=1)
    await arrive(rig, (1, -6))
    with pytest.raises(Unavailable, match="no GPU"):
        await rig.settle()
    await rig.settle()
    assert [step.sample_ids for step in rig.bus.steps] == [("smp-0", "smp-1")]
    assert rig.bus.refusals == []
    await rig.stop()


async def test_a_process_that_hangs_is_killed(tmp_path):
    rig = await ready(tmp_path, timeout_s=0.1)
    await arrive(rig, (1, -3))
    with pytest.raises(Transient, match="longer than 0 s"):
        await rig.settle()
    assert rig.loop.executor.process._child is None
    (tmp_path / "model" / "smp-1").touch()
    rig.loop.executor.process.timeout_s = 120.0
    await rig.settle()
    assert len(rig.bus.steps) == 1
    await rig.stop()


async def test_a_poisonous_batch_is_refused_and_learning_goes_on(tmp_path):
    rig = await ready(tmp_path)
    await arrive(rig, (1, -1, 1, 1))
    await rig.settle()
    assert [(e.sample_id, e.reason) for e in rig.bus.refusals] == [
        ("smp-1", "the step failed: nothing can be learnt from -1"),
    ]
    assert [step.sample_ids for step in rig.bus.steps] == [("smp-0", "smp-2")]
    await rig.stop()


async def test_the_sample_that_kills_the_process_is_refused_alone(tmp_path):
    rig = await ready(tmp_path, attempts=2, batch_size=4)
    await arrive(rig, (1, 1, -4, 1))
    with pytest.raises(Transient):
        await rig.settle()
    await rig.settle()
    await arrive(rig, (1,), first=4)
    await rig.settle()
    assert [(e.sample_id, e.reason) for e in rig.bus.refusals] == [
        ("smp-2", "the step failed: the step process ended with code 9: dies again")
    ]
    assert [step.sample_ids for step in rig.bus.steps] == [("smp-0", "smp-1", "smp-3", "smp-4")]
    await rig.stop()


async def test_an_exception_of_the_learner_shows_file_line_and_sample(tmp_path):
    rig = await ready(tmp_path, batch_size=3)
    await arrive(rig, (1, -5, 1, 1))
    await rig.settle()
    (refusal,) = rig.bus.refusals
    assert refusal.sample_id == "smp-1"
    assert re.fullmatch(r"the step failed: OverflowError at counting.py:\d+", refusal.reason)
    assert [step.sample_ids for step in rig.bus.steps] == [("smp-0", "smp-2", "smp-3")]
    error = rig.loop.facts()["last_error"]
    assert "raise OverflowError(sample.event_id)" in error
    assert "counting.py" in error
    await rig.stop()


async def test_the_loop_runs_until_it_is_cancelled_and_leaves_no_process(tmp_path):
    """A failure in between is tried again by itself."""
    rig = await ready(tmp_path)
    task = asyncio.create_task(rig.loop.run())
    await arrive(rig, (1, -2))
    async with asyncio.timeout(120):
        while not rig.bus.steps:
            await asyncio.sleep(0.02)
    pid = rig.loop.executor.process._child.pid
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    rig.store.close()


async def test_a_batch_is_handed_over_as_a_file_and_the_file_is_gone_afterwards(tmp_path):
    """Twelve megabytes a unit: a line in the pipe would not take them."""
    rig, length = await ready(tmp_path, warmup=99), 500_000
    for number in (0, 1):
        tokens, ones = (7,) * (length + 2), (1,) * length
        long = sample(number, tokens=tokens, loss_mask=ones, logprobs=(-0.123456789,) * length)
        await rig.handlers.on_unit(long)
    await rig.settle()
    assert [step.sample_ids for step in rig.bus.steps] == [("smp-0", "smp-1")]
    assert list((tmp_path / "batches").iterdir()) == []
    await rig.stop()


async def test_a_skipped_step_makes_no_candidate_and_uses_its_samples(tmp_path):
    rig = await ready(tmp_path)
    await arrive(rig, (7, 7, 1, 1))
    await rig.settle()
    skipped, taken = rig.bus.steps
    assert (skipped.sample_ids, skipped.candidate_id) == (("smp-0", "smp-1"), None)
    assert skipped.reason == "the recipe skipped the step: the batch changes nothing"
    assert skipped.metrics["skipped"] == 1.0
    assert [item.lineage.sample_ids for item in rig.bus.candidates] == [taken.sample_ids]
    assert rig.store.counts("jobs", rig.key) == {"finished": 1, "announced": 1}
    assert rig.store.counts("samples", rig.key) == {"used": 4}
    await rig.stop()
