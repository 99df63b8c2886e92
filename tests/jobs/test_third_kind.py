"""A third kind costs an executor: crash safety, retention and verdicts come from the host."""

import inspect
import json
from datetime import timedelta

import pytest

from reefcommon.settings import HostSettings
from reefkit.jobs.retention import RejectedContents, Retention
from tests.jobs.rig import WordsRig
from tests.jobs.words import WordsExecutor
from tests.recipes.samples import AT, sample
from tests.trainer.rig import Killed, Mortal
from tests.trainer.test_retention import Dropping, Heads, receipt


def test_an_executor_of_a_new_kind_is_short():
    assert len(inspect.getsource(WordsExecutor).splitlines()) <= 40


async def story(rig):
    """The log is delivered from its beginning; delivered events come again."""
    await rig.publish(5)
    await rig.arrive("a b", "", "b c", "nothing", "nothing", "d d", "e")
    for sequence in (6, 7, 8):
        await rig.settle()
        if rig.candidates and sequence == 6:
            await rig.publish(6, candidate=rig.candidates[0].event_id)
        await rig.settle()


async def lived(home, at, after):
    """Kill a host at its n-th effect, and let the next one finish. Returns what others see."""
    rig = WordsRig(home, mortal=Mortal(at, after))
    try:
        await story(rig)
    except Killed:
        rig.restart()
        await story(rig)
    candidates = [
        (item.event_id, item.content_id, item.lineage.sample_ids, item.base_release_id)
        for item in rig.candidates
    ]
    seen = candidates, set(rig.steps), {(r.event_id, r.reason) for r in rig.bus.refusals}
    assert rig.store.unsent(9) == []
    assert rig.store.counts("samples", rig.key) == {"used": 6, "refused": 1}
    assert rig.jobs() == {"published": 1, "finished": 1, "announced": 1}
    contents = [
        json.loads((rig.shelf.root / item.content_id / "words.json").read_text())
        for item in rig.candidates
    ]
    assert contents == [{"a": 1, "b": 2, "c": 1}, {"d": 2, "e": 1}]
    rig.store.close()
    return seen, rig.mortal.killed_at


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_killed_at_every_transition_the_story_is_the_same(tmp_path, after):
    expected, _ = await lived(tmp_path / "whole", None, after)
    killed = []
    while not killed or killed[-1] is not None:
        at = len(killed) + 1
        seen, name = await lived(tmp_path / str(at), at, after)
        killed.append(name)
        assert seen == expected, f"killed at effect {at}, {name}"
    transitions = {f"save {state}" for state in ("produced", "stored", "announced", "finished")}
    assert transitions | {"open", "refuse", "put", "acknowledge", "save published"} <= set(killed)
    assert len(killed) > 25


@pytest.mark.parametrize(
    ("outcome", "state"),
    [("rejected", "rejected"), ("aborted", "aborted"), ("conflicted", "conflicted")],
)
async def test_a_verdict_ends_the_job_and_the_next_one_begins(tmp_path, outcome, state):
    rig = WordsRig(tmp_path)
    await rig.publish(5)
    await rig.arrive("a", "b", "c", "d")
    await rig.settle()
    assert rig.loop.facts()["state"] == "waiting for the verdict on its candidate"
    assert rig.loop.facts()["proposed_at"] > AT
    assert rig.loop.facts()["knobs"] == rig.loop.binding.recipe.knobs.model_dump()
    await rig.reject(rig.candidates[0].event_id, outcome)
    assert rig.jobs() == {state: 1}
    assert rig.loop.facts()["proposed_at"] is None
    await rig.settle()
    assert len(rig.candidates) == (1 if state == "conflicted" else 2)


async def test_ended_jobs_and_lost_contents_are_forgotten(tmp_path):
    rig, store = WordsRig(tmp_path), Dropping()
    await rig.publish(5)
    for day in range(3):
        for offset in (0, 1):
            number = 2 * day + offset
            record = receipt(day, number)
            await rig.handlers.on_unit(sample(number, feedback="w", record_ids=(record,)))
        await rig.settle()
        await rig.reject(rig.candidates[-1].event_id)
    rejected = RejectedContents(rig.store, store, Heads("base"), rig.kit.storing)
    settings = HostSettings(settled_kept_s=30 * 86400.0, rejected_kept_s=86400.0)
    retention = Retention(
        "words",
        rig.handlers.loops,
        rig.kit.trees,
        rejected,
        settings,
        lambda: AT + timedelta(days=99),
    )
    assert (await retention.round())["contents"] == 1  # three times the same words
    assert store.dropped == [rig.candidates[0].content_id]
    gone = await retention.round()
    assert (gone["jobs"], gone["samples"]) == (2, 4)
    again = sample(0, feedback="w", record_ids=(receipt(0, 0),))
    await rig.handlers.on_unit(again)
    await rig.settle()
    assert [(r.sample_id, r.reason) for r in rig.bus.refusals] == [("smp-0", "too_old")]
