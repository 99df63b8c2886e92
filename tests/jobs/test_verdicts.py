"""`on_verdict`: each verdict on a candidate comes back to its recipe, with its writes, at least once."""

import asyncio
import json

import pytest

from reefcommon.events import Evaluation, ReleaseRejected
from reefcommon.recipe import Knobs
from tests.jobs.rig import WordsRig
from tests.jobs.words import WordsRecipe
from tests.recipes.samples import AT


class Learning(WordsRecipe):
    """Keeps the outcomes of its candidates. `fails`: how many times it fails first."""

    fails = 0
    calls = 0

    async def on_verdict(self, judged, ctx):
        type(self).calls += 1
        seen = ctx.store.get("seen", [])
        words = judged.evaluation.reason if judged.evaluation else ""
        ctx.store.put("seen", [*seen, [judged.candidate.event_id, judged.outcome, words]])
        if type(self).calls <= self.fails:
            raise ZeroDivisionError("words of a user")


@pytest.fixture
def rig(tmp_path):
    Learning.calls = Learning.fails = 0
    return WordsRig(tmp_path, recipe=Learning(Knobs()))


def seen(rig):
    row = rig.store.state_value(rig.key, "seen")
    return [] if row is None else json.loads(row[1])


async def proposed(rig):
    await rig.publish(5)
    await rig.arrive("a", "b")
    await rig.settle()
    return rig.candidates[0].event_id


async def reject(rig, candidate):
    evaluation = Evaluation(
        verdict="reject", policy="score_comparison", reason="two of five", head_release_id="r5", pairs=5
    )  # fmt: skip
    await rig.handlers.on_publication(
        ReleaseRejected(
            event_id=f"rej-{candidate}", at=AT, scenario="default", outcome="rejected", reason="worse",
            candidate_id=candidate, evaluation=evaluation,
        )
    )  # fmt: skip


async def test_a_verdict_comes_back_with_its_evaluation(rig):
    candidate = await proposed(rig)
    for _ in range(2):  # the event comes again
        await reject(rig, candidate)
    await rig.loop.verdicts.settle()
    assert seen(rig) == [[candidate, "rejected", "two of five"]]
    assert rig.store.verdicts(rig.key) == []
    await rig.publish(6, candidate=candidate)  # a person promotes it all the same
    await rig.loop.verdicts.settle()
    assert [outcome for _, outcome, _ in seen(rig)] == ["rejected", "published"]


async def test_a_verdict_survives_a_kill_before_it_is_given(rig):
    candidate = await proposed(rig)
    await rig.publish(6, candidate=candidate)
    rig.restart()
    await rig.loop.verdicts.settle()
    assert [outcome for _, outcome, _ in seen(rig)] == ["published"]


async def test_a_verdict_that_meets_a_move_of_its_job_is_kept(rig, monkeypatch):
    """The loop announces the job after the verdict's handler has read it."""
    await rig.publish(5)
    await rig.arrive("a", "b")
    while not rig.jobs().get("stored"):
        await rig.loop.once()
    await rig.loop.kit.outbox.flush()
    (candidate,) = (one.event_id for one in rig.candidates)
    read = rig.store.of_candidate
    stale = [read(candidate)]
    await rig.settle()
    assert rig.jobs() == {"announced": 1}
    monkeypatch.setattr(
        rig.store, "of_candidate", lambda name: stale.pop() if stale else read(name)
    )
    await rig.publish(6, candidate=candidate)
    assert stale == []
    assert rig.jobs() == {"published": 1}
    await rig.loop.verdicts.settle()
    assert [outcome for _, outcome, _ in seen(rig)] == ["published"]


async def test_a_failure_is_tried_again_and_leaves_no_writes(rig):
    candidate = await proposed(rig)
    Learning.fails = 2
    await rig.publish(6, candidate=candidate)
    await rig.loop.verdicts.settle()
    assert Learning.calls == 3
    assert [outcome for _, outcome, _ in seen(rig)] == ["published"]
    assert rig.loop.verdicts.last_error.startswith("ZeroDivisionError at test_verdicts.py:")


async def test_a_verdict_that_always_fails_is_dropped_and_the_loop_goes_on(rig):
    candidate = await proposed(rig)
    Learning.fails = 99
    task = asyncio.create_task(rig.loop.verdicts.run())
    await rig.publish(6, candidate=candidate)
    async with asyncio.timeout(5):
        while rig.store.verdicts(rig.key) or not Learning.calls:
            await asyncio.sleep(0.01)
    assert seen(rig) == []
    assert not task.done()
    task.cancel()
    await rig.arrive("c", "d", first=2)
    await rig.settle()
    assert len(rig.candidates) == 2


async def test_a_recipe_without_on_verdict_keeps_none(tmp_path):
    rig = WordsRig(tmp_path)
    candidate = await proposed(rig)
    await rig.publish(6, candidate=candidate)
    assert rig.store.verdicts(rig.key) == []
