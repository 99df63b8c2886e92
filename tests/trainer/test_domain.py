"""Which state the next step starts from, and which samples are spent."""

from dataclasses import replace

import pytest

from reefcommon.evaluation import is_held_out
from reefcommon.events import ReleasePublished
from services.trainer.domain import (
    Binding,
    Start,
    choose,
    open_job,
    plan_start,
    sort_by_use,
    states_to_keep,
    verdict_of,
    weights_content,
)
from tests.recipes.samples import AT, sample
from tests.trainer.counting import CountingRecipe, Knobs
from tests.trainer.rig import release

BINDING = Binding("default", "tests.trainer.counting:CountingRecipe", CountingRecipe(Knobs()))


def job(number, *, base="base", content=None, verdict=None):
    opened = open_job(BINDING, release(5, base), [sample(number)], Start(), AT)
    return replace(
        opened,
        job_id=f"job-{number}",
        state="complete",
        step=number,
        proposes=content is not None,
        content_id=content,
        verdict=verdict,
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
    assert weights_content(composite) == "lora-1"
    assert weights_content(release(1)) == "base"


def test_a_record_is_used_once_and_its_second_sample_waits_for_the_first():
    a, b, c = (
        sample(0, record_ids=("r1", "r2")),
        sample(1, record_ids=("r2",)),
        sample(2, record_ids=("r3",)),
    )
    assert [s.event_id for s in sort_by_use([a, b, c], set()).fresh] == ["smp-0", "smp-2"]
    usable = sort_by_use([b, c], {"r2"})
    assert [s.event_id for s in usable.spent] == ["smp-1"]
    assert [
        (s.event_id, why) for s, why, _ in choose(BINDING, [b, c], {"r2"}, release(5)).refused
    ] == [("smp-1", "already_trained")]


def test_the_same_inputs_give_the_same_job():
    batch = [sample(0), sample(1)]
    one = open_job(BINDING, release(5), batch, Start(), AT)
    assert one.job_id == open_job(BINDING, release(5), batch[::-1], Start(), AT).job_id
    assert one.job_id != open_job(BINDING, release(6), batch, Start(), AT).job_id
    assert one.facts["lag_max"] == 0.0
    assert open_job(BINDING, release(7), batch, Start(), AT).facts["lag_mean"] == 2.0


def test_verdicts_are_read_from_the_release_chain():
    event = ReleasePublished(
        event_id="r9", at=AT, scenario="default", release=release(9, "lora-9", "cnd-1")
    )
    assert verdict_of(event) == ("cnd-1", "published")
    assert verdict_of(event.model_copy(update={"release": release(9, "lora-9")})) is None


def test_bounded_disk():
    jobs = [
        job(i, content=f"lora-{i}", verdict="rejected" if i % 2 else "published")
        for i in range(1, 9)
    ]
    assert states_to_keep(jobs, "lora-2", 2) == {"job-2", "job-6", "job-8"}


def test_what_is_under_way_keeps_what_it_starts_from_and_what_is_not_judged_keeps_itself():
    jobs = [job(i, content=f"lora-{i}", verdict="rejected") for i in range(1, 6)]
    jobs[2] = job(3, content="lora-3")
    running = replace(job(6), state="running", start=Start(state="job-4", actor="job-1"))
    assert states_to_keep([*jobs, running], "base", 2) == {
        "job-1",
        "job-3",
        "job-4",
        "job-5",
        "job-6",
    }


def test_where_candidates_are_judged_by_replay_the_judges_are_never_trained_on():
    judging = replace(BINDING, holds_out=True, recipe=CountingRecipe(Knobs(batch_size=20)))
    waiting = [sample(number) for number in range(40)]
    decision = choose(judging, waiting, set(), release(5))
    apart = {s.event_id for s, why, _ in decision.refused if why == "held_out"}
    assert apart == {s.event_id for s in waiting if is_held_out(s.event_id)}
    assert apart
    assert len(decision.batch) == 20
    assert apart.isdisjoint(s.event_id for s in decision.batch)
    assert not [
        why
        for _, why, _ in choose(BINDING, waiting, set(), release(5)).refused
        if why == "held_out"
    ]
