"""Which state the next step starts from, and which samples are spent."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest

from reefcommon.evaluation import is_held_out
from reefcommon.ids import LoadId
from reefkit.jobs.admission import Admission
from reefkit.jobs.faults import BoundedCall
from reefkit.jobs.model import content_of, open_job
from reefkit.recipe_binding import Binding
from services.trainer.domain import Start, batch_facts, plan_start, states_to_keep
from services.trainer.executor import WeightExecutor
from tests.recipes.samples import AT, sample
from tests.trainer.counting import CountingRecipe, Knobs
from tests.trainer.rig import release

BINDING = Binding("default", "tests.trainer.counting:CountingRecipe", CountingRecipe(Knobs()))


def opened(samples, head):
    return open_job(BINDING, "lora", head, samples, step=1, plan={}, now=AT)


def job(number, *, base="base", content=None, verdict=None):
    state = (verdict or "announced") if content is not None else "finished"
    return replace(
        opened([sample(number)], release(5, base)),
        job_id=f"job-{number}",
        state=state,
        step=number,
        proposes=content is not None,
        content_id=content,
        finished_at=AT,
    )


@pytest.mark.parametrize(
    ("last", "head", "start"),
    [
        (None, "base", Start()),
        (None, "lora-foreign", Start(adopt="lora-foreign")),
        (job(1), "base", Start(state="job-1")),
        (job(2, content="lora-2", verdict="published"), "lora-2", Start(state="job-2")),
        (job(2, content="lora-2", verdict="rejected"), "base", Start(state="job-2", adopt="base")),
        (
            job(3, base="lora-1", content="lora-3", verdict="rejected"),
            "lora-1",
            Start(state="job-3", actor="job-1"),
        ),
        (
            job(3, base="lora-1", content="lora-3", verdict="pending"),
            "lora-1",
            Start(state="job-3", actor="job-1"),
        ),
        (
            job(3, base="lora-1", content="lora-3", verdict="published"),
            "lora-1",
            Start(state="job-3", actor="job-1"),
        ),
        (job(3, base="lora-1"), "lora-foreign", Start(state="job-3", adopt="lora-foreign")),
    ],
    ids=[
        "first",
        "first-on-foreign",
        "unproposed",
        "published",
        "rejected-to-base",
        "rejected",
        "pending",
        "rolled-back",
        "foreign",
    ],
)
def test_the_actor_follows_the_head(last, head, start):
    assert plan_start(last, head, {"lora-1": "job-1"}) == start


def test_weights_of_a_harness_release_are_those_below_it():
    composite = release(3, "lora-1").model_copy(
        update={
            "kind": "harness",
            "content_id": "harness-1",
            "contents": {"lora": "lora-1", "harness": "harness-1"},
        }
    )
    assert content_of(composite, "lora") == "lora-1"
    assert content_of(release(1), "lora") == "base"


async def choose(binding, waiting, used, head):
    executor = WeightExecutor(binding, None, None, None, kept_states=1)
    ends = SimpleNamespace(noted=lambda _call: nullcontext())
    admission = Admission(binding, executor, BoundedCall("decide", 10.0), ends)
    return await admission.choose(waiting, used, head)


async def test_a_record_is_used_once_and_its_second_sample_waits_for_the_first():
    a, b, c = (
        sample(0, record_ids=("r1", "r2")),
        sample(1, record_ids=("r2",)),
        sample(2, record_ids=("r3",)),
    )
    choice = await choose(BINDING, [a, b, c], set(), release(5))
    assert [s.event_id for s in choice.batch] == ["smp-0", "smp-2"]
    assert choice.refused == ()
    choice = await choose(BINDING, [b, c], {"r2"}, release(5))
    assert [(s.event_id, reason) for s, reason, _ in choice.refused] == [
        ("smp-1", "already_trained")
    ]


def test_the_same_inputs_give_the_same_job():
    batch = [sample(0), sample(1)]
    first = opened(batch, release(5))
    assert first.job_id == opened(batch[::-1], release(5)).job_id
    assert first.job_id != opened(batch, release(6)).job_id
    assert batch_facts(batch, LoadId("run", 5), AT)["lag_max"] == 0.0
    assert batch_facts(batch, LoadId("run", 7), AT)["lag_mean"] == 2.0


@pytest.mark.parametrize("load", [None, "", "nonsense", "other:3"])
def test_samples_of_unknown_weights_have_no_lag(load):
    assert batch_facts([sample(0, load_id=load)], LoadId("run", 5), AT)["lag_max"] == 0.0


def test_bounded_disk():
    jobs = [
        job(i, content=f"lora-{i}", verdict="rejected" if i % 2 else "published")
        for i in range(1, 9)
    ]
    assert states_to_keep(jobs, "lora-2", 2) == {"job-2", "job-6", "job-8"}


def test_unfinished_jobs_keep_their_starts_and_states():
    jobs = [job(i, content=f"lora-{i}", verdict="rejected") for i in range(1, 6)]
    jobs[2] = job(3, content="lora-3")
    running = replace(
        job(6), state="open", plan={"start": {"state": "job-4", "actor": "job-1", "adopt": None}}
    )
    assert states_to_keep([*jobs, running], "base", 2) == {
        "job-1",
        "job-3",
        "job-4",
        "job-5",
        "job-6",
    }


async def test_held_out_samples_are_never_trained_on():
    judging = replace(BINDING, holds_out=True, recipe=CountingRecipe(Knobs(batch_size=20)))
    waiting = [sample(number) for number in range(40)]
    choice = await choose(judging, waiting, set(), release(5))
    apart = {s.event_id for s, reason, _ in choice.refused if reason == "held_out"}
    assert apart == {s.event_id for s in waiting if is_held_out(s.event_id)}
    assert apart
    assert len(choice.batch) == 20
    assert apart.isdisjoint(s.event_id for s in choice.batch)
    assert (await choose(BINDING, waiting, set(), release(5))).refused == ()
