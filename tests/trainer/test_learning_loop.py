"""From samples to candidates through a real step process, with what can go wrong on the way."""

import asyncio
import shutil

import pytest

from reefcommon.errors import Transient, Unavailable
from reefcommon.events import ReleasePublished
from reefcommon.recipe import Decision
from reefkit.jobs.loop import HostLoop
from tests.recipes.samples import AT, sample
from tests.trainer.counting import CountingRecipe
from tests.trainer.rig import Killed, Mortal, Rig, release


@pytest.fixture
async def rig(tmp_path):
    made = Rig(tmp_path)
    await made.publish(5)
    yield made
    await made.stop()


async def arrive(rig, *numbers, **changes):
    for number in numbers:
        await rig.handlers.on_unit(sample(number, **changes))


async def test_a_batch_becomes_one_candidate_and_waits_for_its_verdict(rig):
    await arrive(rig, 0, 0, 1, 2, 3)
    await rig.settle()
    (candidate,) = rig.bus.candidates
    (step,) = rig.bus.steps
    assert step.candidate_id == candidate.event_id
    assert step.sample_ids == candidate.lineage.sample_ids == ("smp-0", "smp-1")
    assert candidate.base_release_id == "r5"
    assert candidate.lineage.knobs["batch_size"] == 2
    assert "odd" not in step.metrics  # only finite figures
    assert step.metrics["lag_max"] == 0.0
    assert rig.shelf.trained_on(candidate.content_id) == ["smp-0", "smp-1"]
    assert rig.loop.context.doing == "waiting for the verdict on its candidate"
    assert rig.store.counts("samples", rig.key) == {"used": 2, "waiting": 2}


async def test_a_restart_shows_the_last_finished_step(rig):
    await arrive(rig, 0, 1)
    await rig.settle()
    shown = rig.loop.context.step, rig.loop.context.last_metrics
    assert shown[0] == 1
    assert shown[1]
    await rig.restart()
    assert (rig.loop.context.step, rig.loop.context.last_metrics) == shown


async def test_published_rejected_and_rolled_back_actors(rig):
    """The actor follows the head; the critic, and with it the step count, only ever goes on."""
    await arrive(rig, 0, 1)
    await rig.settle()
    first = rig.bus.candidates[-1]
    await rig.publish(6, first.content_id, candidate=first.event_id)
    await arrive(rig, 2, 3, load_id="run:6")
    await rig.settle()
    second = rig.bus.candidates[-1]
    assert rig.shelf.trained_on(second.content_id) == ["smp-0", "smp-1", "smp-2", "smp-3"]
    await rig.reject(second.event_id)
    await arrive(rig, 4, 5, load_id="run:6")
    await rig.settle()
    third = rig.bus.candidates[-1]
    assert rig.shelf.trained_on(third.content_id) == ["smp-0", "smp-1", "smp-4", "smp-5"]
    assert [step.step for step in rig.bus.steps] == [1, 2, 3]
    await rig.publish(7, third.content_id, candidate=third.event_id)
    await rig.publish(8, "base")
    await arrive(rig, 6, 7, load_id="run:8")
    await rig.settle()
    assert rig.shelf.trained_on(rig.bus.candidates[-1].content_id) == ["smp-6", "smp-7"]
    assert rig.bus.steps[-1].step == 4


async def test_a_foreign_release_is_adopted_from_the_store(rig, tmp_path):
    await arrive(rig, 0, 1)
    await rig.settle()
    mine = rig.bus.candidates[-1]
    other = Rig(tmp_path / "other")
    other.bus, other.shelf = rig.bus, rig.shelf
    await other.restart()
    await other.publish(6, mine.content_id)
    await arrive(other, 2, 3, load_id="run:6")
    await other.settle()
    assert other.shelf.trained_on(rig.bus.candidates[-1].content_id) == [
        "smp-0",
        "smp-1",
        "smp-2",
        "smp-3",
    ]
    await other.stop()


async def test_a_release_whose_content_is_lost_costs_no_sample(rig):
    await rig.publish(6, "lora-" + "0" * 32)
    await arrive(rig, 2, 3, load_id="run:6")
    for _ in range(8):  # more than a failing recipe is allowed
        with pytest.raises(Unavailable, match=r"restore the artifact store, or roll default back"):
            await rig.settle()
    assert rig.bus.refusals == []
    await rig.publish(7)
    await arrive(rig, 4, 5, load_id="run:7")
    await rig.settle()
    assert {refusal.reason for refusal in rig.bus.refusals} == {"stale"}
    assert rig.shelf.trained_on(rig.bus.candidates[-1].content_id) == ["smp-4", "smp-5"]


async def test_a_state_that_was_lost_costs_the_critic_and_not_the_actor(rig):
    """As with a new disk below the states: the actor is what serves, from the store."""
    await arrive(rig, 0, 1)
    await rig.settle()
    candidate = rig.bus.candidates[-1]
    await rig.publish(6, candidate.content_id, candidate=candidate.event_id)
    shutil.rmtree(rig.states.path(rig.key, rig.bus.steps[-1].event_id))
    await rig.restart()
    await arrive(rig, 2, 3, load_id="run:6")
    await rig.settle()
    assert rig.shelf.trained_on(rig.bus.candidates[-1].content_id) == [
        "smp-0",
        "smp-1",
        "smp-2",
        "smp-3",
    ]
    assert [step.step for step in rig.bus.steps] == [1, 1]


async def test_other_base_weights_than_the_learners_are_waited_out(rig):
    """An adapter that is trained on the base model is none for a checkpoint that serves in its place."""
    full = release(6).model_copy(
        update={
            "kind": "checkpoint",
            "content_id": "checkpoint-1",
            "contents": {"checkpoint": "checkpoint-1"},
        }
    )
    await rig.handlers.on_publication(
        ReleasePublished(event_id="r6", at=AT, scenario="default", release=full)
    )
    await arrive(rig, 0, 1, load_id="run:6")
    await rig.settle()
    assert (rig.loop.context.doing.partition(" serves")[0], rig.bus.steps) == (
        "waiting: checkpoint-1",
        [],
    )
    await rig.publish(7)
    await arrive(rig, 2, 3, load_id="run:7")
    await rig.settle()
    assert [step.sample_ids for step in rig.bus.steps] == [("smp-2", "smp-3")]


async def test_steps_that_propose_nothing_go_on_at_once(tmp_path):
    rig = Rig(tmp_path, warmup=1, every=2)
    await rig.publish(5)
    await arrive(rig, *range(8))
    await rig.settle()
    assert [step.candidate_id is not None for step in rig.bus.steps] == [False, False, True]
    assert rig.bus.steps[0].reason is not None
    assert rig.shelf.trained_on(rig.bus.candidates[0].content_id) == [f"smp-{i}" for i in range(6)]
    await rig.stop()


async def test_refusals_are_durable_and_told_when_the_broker_is_back(tmp_path):
    """E10: lags 0, 2, 3 and another incarnation under a bound of 2: refused exactly as designed, with the reason, durably."""
    rig = Rig(tmp_path, max_staleness=2)
    await rig.publish(5)
    for number, load in enumerate(("run:5", "run:3", "run:2", "old:5")):
        await rig.handlers.on_unit(sample(number, load_id=load))
    rig.bus.away = True
    with pytest.raises(Exception, match="no broker"):
        await rig.settle()
    rig.bus.away = False
    await rig.restart()
    await rig.settle()
    assert [(e.sample_id, e.reason, e.lag) for e in rig.bus.refusals] == [
        ("smp-2", "stale", 3),
        ("smp-3", "other_incarnation", None),
    ]
    assert rig.bus.steps[0].sample_ids == ("smp-0", "smp-1")
    assert rig.bus.steps[0].metrics["lag_max"] == 2.0
    assert rig.store.refusals(rig.key) == {"stale": 1, "other_incarnation": 1}
    await rig.stop()


async def test_a_record_trains_once(rig):
    await arrive(rig, 0, 1)
    await rig.settle()
    await rig.reject(rig.bus.candidates[0].event_id)
    await rig.handlers.on_unit(sample(9, record_ids=("rec-1", "rec-9")))
    await rig.settle()
    assert [(e.sample_id, e.reason) for e in rig.bus.refusals] == [("smp-9", "already_trained")]


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (lambda waiting: waiting[7], "IndexError"),
        (lambda waiting: None, "AttributeError"),
        (lambda waiting: Decision(batch=(waiting[0], waiting[0])), "1 samples are named twice"),
        (
            lambda waiting: Decision(batch=tuple(waiting), refused=((waiting[0], "no", None),)),
            "1 samples are named twice",
        ),
        (lambda waiting: Decision(batch=(sample(77),)), "smp-77 was not offered"),
        (
            lambda waiting: Decision(refused=((waiting[0], "old", float("nan")),)),
            "IndexError|whole number",
        ),
    ],
)
async def test_a_recipe_that_decides_nonsense_stops_its_own_learning_until_it_is_mended(
    rig, monkeypatch, odd, message
):
    """Anything else than a failure to be tried again would end the service, again and again, and the whole stack with it."""
    await arrive(rig, 0, 1)
    with monkeypatch.context() as patch:
        patch.setattr(CountingRecipe, "decide", lambda _self, waiting, _serving: odd(waiting))
        with pytest.raises(Transient, match=f"CountingRecipe cannot decide: .*{message}"):
            await rig.settle()
    assert rig.bus.events == []
    await rig.settle()
    assert rig.bus.steps[0].sample_ids == ("smp-0", "smp-1")


async def test_a_full_disk_is_waited_for(rig):
    """A sample that cannot be kept now is no dead letter: its handler is called again for as long as the disk is full."""
    size = rig.store._db.execute("pragma page_count").fetchone()[0]
    rig.store._db.execute(f"pragma max_page_count = {size}")
    with pytest.raises(Unavailable, match="is the disk full"):
        await rig.handlers.on_unit(sample(0, feedback="x" * 50_000))
    rig.store._db.execute("pragma max_page_count = 100000")
    await rig.handlers.on_unit(sample(0, feedback="x" * 50_000))
    assert rig.store.counts("samples", rig.key) == {"waiting": 1}


async def test_the_store_refuses_the_write(rig):
    """T2: the batch stays pending, nothing is announced; the retry, of a new process too, gives one candidate without a second step."""
    await arrive(rig, 0, 1)
    rig.shelf.away = True
    for _ in range(2):
        with pytest.raises(Exception, match="does not take it"):
            await rig.settle()
    assert rig.bus.events == []
    assert rig.store.counts("samples", rig.key) == {"taken": 2}
    assert len(rig.stepped) == 1
    rig.shelf.away = False
    await rig.restart()
    await rig.settle()
    assert len(rig.bus.candidates) == len(rig.bus.steps) == len(rig.stepped) == 1
    assert rig.bus.steps[0].step == 1


async def test_resume_keeps_the_staleness_bound(tmp_path):
    """T3: at version 40 with a backlog of old samples, over the next 20 steps, restarted on the way."""
    rig = Rig(tmp_path, max_staleness=2, batch_size=1)
    await rig.publish(40)
    for number in range(40):
        await rig.handlers.on_unit(sample(number, load_id=f"run:{number}"))
    for step in range(20):
        await rig.handlers.on_unit(sample(100 + step, load_id=f"run:{40 + step}"))
        if step % 7 == 3:
            await rig.restart()
        await rig.settle()
        assert rig.loop.context.doing == "waiting for the verdict on its candidate"
        candidate = rig.bus.candidates[-1]
        await rig.publish(41 + step, candidate.content_id, candidate=candidate.event_id)
    assert len(rig.bus.steps) == 20
    assert max(step.metrics["lag_max"] for step in rig.bus.steps) <= 2
    # run:38 and run:39 were fresh enough at first; each step takes one, so that the head runs ahead of the rest.
    assert {e.reason for e in rig.bus.refusals} == {"stale"}
    assert len({e.sample_id for e in rig.bus.refusals}) == len(rig.bus.refusals)
    assert len(rig.states.kept(rig.key)) <= 4
    await rig.stop()


async def test_an_interrupted_step_is_decided_anew_when_another_release_serves(rig):
    """The job was opened under r5 and never ran; under r6 its samples are too old."""
    await arrive(rig, 0, 1)
    assert await rig.loop.once()
    await rig.restart()
    await rig.publish(6)
    await rig.settle()
    assert rig.bus.steps == []
    assert [(e.sample_id, e.reason, e.lag) for e in rig.bus.refusals] == [
        ("smp-0", "stale", 1),
        ("smp-1", "stale", 1),
    ]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_killed_at_every_effect(tmp_path, after):
    """T1: killed before or after each write; the restart finishes the same job once and trains on the same samples once."""
    killed = []
    while not killed or killed[-1] is not None:  # until a life ends by itself
        effect = len(killed) + 1
        killed.append(await killed_at(tmp_path / str(effect), effect, after))
    assert len(killed) > 11
    assert killed[-4:] == [
        "publish StepCompleted",
        "acknowledge",
        "save announced",
        None,
    ]


async def killed_at(home, effect, after):
    """What the process was killed at; whatever it was, the end is the same."""
    rig = Rig(home, mortal=Mortal(effect, after))
    await rig.publish(5)
    await rig.handlers.on_unit(sample(7, load_id="run:1"))
    await arrive(rig, 0, 1)
    try:
        await rig.settle()
    except Killed:
        await rig.restart()
        await arrive(rig, 0, 1)  # the offset was not committed: they come again
        await rig.settle()
    assert len(rig.stepped) == 1, "a step that ended is on the disk, and is not made again"
    assert len({e.model_dump_json() for e in rig.bus.candidates}) == 1
    assert len({e.model_dump_json() for e in rig.bus.steps}) == 1
    assert (rig.bus.steps[0].event_id, rig.bus.steps[0].candidate_id) == (
        rig.stepped[0],
        rig.bus.candidates[0].event_id,
    )
    assert rig.shelf.trained_on(rig.bus.candidates[0].content_id) == ["smp-0", "smp-1"]
    assert rig.bus.steps[0].step == 1
    assert rig.store.counts("samples", rig.key) == {"used": 2, "refused": 1}
    assert {(e.event_id, e.sample_id, e.reason) for e in rig.bus.refusals} == {
        (rig.bus.refusals[0].event_id, "smp-7", "stale")
    }
    assert rig.store.unsent(9) == []
    await rig.stop()
    return rig.mortal.killed_at


class Stumbling:
    """StepProcess that fails as often as told before it does what it is asked."""

    def __init__(self, process):
        self.process, self.failures = process, 0

    async def step(self, request):
        if self.failures:
            self.failures -= 1
            raise Transient("it died")
        return await self.process.step(request)

    async def stop(self):
        await self.process.stop()


async def test_what_one_job_suffered_is_not_counted_against_the_next(tmp_path):
    rig = Rig(tmp_path, attempts=2, warmup=99)
    rig.loop.executor.process = process = Stumbling(rig.loop.executor.process)
    await rig.publish(5)
    for first in (0, 2):
        await arrive(rig, first, first + 1)
        process.failures = 1
        with pytest.raises(Transient, match="it died"):
            await rig.settle()
        await rig.settle()
    assert [step.sample_ids for step in rig.bus.steps] == [("smp-0", "smp-1"), ("smp-2", "smp-3")]
    await arrive(rig, 4, 5)
    process.failures = 2
    with pytest.raises(Transient, match="it died"):
        await rig.settle()
    await rig.settle()
    assert [e.reason for e in rig.bus.refusals] == ["the step failed 2 times; last: it died"] * 2
    await rig.stop()


async def test_nothing_is_stored_while_contents_are_being_dropped(rig):
    """What is stored may be a content that was rejected before: it is looked for, and dropped, under the same lock."""
    await arrive(rig, 0, 1)
    for _ in range(2):  # opened, trained
        assert await rig.loop.once()
    async with rig.kit.storing:
        storing = asyncio.create_task(rig.loop.once())
        await asyncio.wait((storing,), timeout=0.1)
        assert not rig.shelf.root.exists()
    await storing
    assert len(list(rig.shelf.root.iterdir())) == 1


async def test_a_verdict_is_seen_with_the_head_that_it_made(rig, monkeypatch):
    """Else the next job would be opened on the release before, and its samples be taken for older than they are."""
    await arrive(rig, 0, 1)
    await rig.settle()
    (candidate,) = rig.bus.candidates
    seen = []

    async def judge(_loop, job, publication):
        seen.append((job.candidate_id, rig.store.head("default").sequence))

    monkeypatch.setattr(HostLoop, "apply_verdict", judge)
    won = release(6, candidate.content_id, candidate.event_id)
    await rig.handlers.on_publication(
        ReleasePublished(event_id="r6", at=AT, scenario="default", release=won)
    )
    assert seen == [(candidate.event_id, 6)]


async def test_a_loop_looks_once_for_each_time_that_it_is_woken(rig, monkeypatch):
    looks = []

    async def once(_self):
        looks.append(1)
        await asyncio.sleep(0)
        return False

    monkeypatch.setattr(HostLoop, "once", once)
    running = asyncio.create_task(rig.loop.run())
    for number in (1, 2, 3):
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(looks) == number
        rig.loop.arrived.set()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
