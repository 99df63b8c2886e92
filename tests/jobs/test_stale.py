"""Another head than a candidate's base: its own kind's load decides, and `on_stale`."""

from datetime import timedelta

import pytest

from tests.jobs.rig import WordsRig

SAME = {"weights": "run:6", "routing": "run:5"}
OTHER = {"weights": "run:5", "routing": "run:6"}
BEFORE = {"weights": "run:5", "routing": "run:5"}


async def conflicted(tmp_path, on_stale, loads):
    rig = WordsRig(tmp_path, on_stale=on_stale)
    await rig.publish(5, loads=BEFORE)
    await rig.arrive("a", "b")
    await rig.settle()
    await rig.publish(6, loads=loads)
    await rig.reject(rig.candidates[0].event_id, "conflicted")
    await rig.settle()
    return rig


@pytest.mark.parametrize(
    ("on_stale", "loads", "again"),
    [
        ("refuse", SAME, False),
        ("refuse", OTHER, False),
        ("merge", SAME, True),
        ("merge", OTHER, False),
        ("reevaluate", SAME, True),
        ("reevaluate", OTHER, True),
    ],
)
async def test_on_stale_decides_whether_a_candidate_comes_again(tmp_path, on_stale, loads, again):
    rig = await conflicted(tmp_path, on_stale, loads)
    bases = [item.base_release_id for item in rig.candidates]
    assert bases == (["r5", "r6"] if again else ["r5"])
    assert rig.jobs() == ({"announced": 1} if again else {"aborted": 1})
    assert len({item.content_id for item in rig.candidates}) == 1
    assert len(rig.loop.executor.ran) == len(rig.steps) == 1


async def test_a_verdict_on_the_second_try_ends_the_job(tmp_path):
    rig = await conflicted(tmp_path, "merge", SAME)
    first, second = rig.candidates
    await rig.reject(first.event_id, "rejected")
    assert rig.jobs() == {"announced": 1}
    await rig.publish(7, candidate=second.event_id)
    assert rig.jobs() == {"published": 1}


async def test_a_race_is_not_run_for_ever(tmp_path):
    rig = await conflicted(tmp_path, "merge", SAME)
    for sequence in (7, 8, 9):
        await rig.publish(sequence, loads=SAME)
        await rig.reject(rig.candidates[-1].event_id, "conflicted")
        await rig.settle()
    assert [item.base_release_id for item in rig.candidates] == ["r5", "r6", "r7"]
    assert rig.jobs() == {"aborted": 1}


@pytest.mark.parametrize(("loads", "runs"), [(SAME, 1), (OTHER, 2)])
async def test_an_open_job_is_decided_anew_only_if_its_own_kind_moved(tmp_path, loads, runs):
    rig = WordsRig(tmp_path)
    await rig.publish(5, loads=BEFORE)
    await rig.arrive("a", "b")
    await rig.loop.once()
    opened = rig.store.current(rig.key)
    await rig.publish(6, loads=loads)
    await rig.settle()
    (candidate,) = rig.candidates
    assert candidate.base_release_id == "r6"
    assert (candidate.lineage.job_id == opened.job_id) == (runs == 1)


async def test_an_old_release_without_loads_moves_every_kind(tmp_path):
    rig = await conflicted(tmp_path, "merge", None)
    assert rig.jobs() == {"aborted": 1}


async def test_the_time_of_a_step_lacks_that_in_which_reef_was_off(tmp_path):
    rig = WordsRig(tmp_path)
    await rig.publish(0)
    await rig.arrive("kind", "brief")
    assert await rig.loop.once()
    assert rig.jobs()["open"] == 1
    rig.now += timedelta(hours=9)
    rig.restart()
    await rig.settle()
    (step,) = rig.steps.values()
    assert 0 < step.duration_s < 60
