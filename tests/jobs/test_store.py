"""The job store alone: transactions are whole, and settled samples stay settled."""

import sqlite3
from dataclasses import replace

import pytest

from reefcommon import topics
from reefcommon.errors import Transient
from reefcommon.ids import candidate_id, record_times_ms
from reefkit.jobs.model import open_job
from reefkit.jobs.store import JobStore
from reefkit.retention import TOO_OLD
from tests.recipes.samples import AT, sample
from tests.trainer.rig import release
from tests.trainer.test_domain import BINDING
from tests.trainer.test_retention import receipt

KEY = BINDING.key


@pytest.fixture
def store(tmp_path):
    made = JobStore(tmp_path / "ledger.sqlite")
    yield made
    made.close()


def put(store, item):
    too_old = BINDING.refusal((item, TOO_OLD, None), AT)
    return store.put(KEY, item, (too_old, topics.TRAINING), text_only=False)


def waiting(store):
    return [item.event_id for item in store.window(KEY, 99)]


def job_of(*samples):
    return open_job(BINDING, "lora", release(5), samples, step=1, plan={}, now=AT)


def take(store, *samples):
    job = job_of(*samples)
    store.open(job, samples, once_per_record=True)
    return job


def test_every_commit_is_on_the_disk_before_it_returns(store):
    assert store._rows("pragma synchronous") == [(2,)]
    assert store._rows("pragma journal_mode") == [("wal",)]


@pytest.mark.parametrize("how", ["the disk is full", "a record was taken"])
def test_a_job_that_cannot_be_opened_whole_is_not_opened(store, how):
    for number in range(3):
        put(store, sample(number))
    taken = sample(0, record_ids=("rec-9",))
    wide = sample(1, record_ids=tuple(f"rec-{n:0200}" for n in range(9, 400)))
    first = take(store, taken)
    if how == "the disk is full":
        (pages,) = store._rows("pragma page_count")[0]
        store._rows(f"pragma max_page_count = {pages + 2}")
        with pytest.raises(Transient, match="disk full"):
            take(store, wide)
        store._rows("pragma max_page_count = 1000000")
    else:
        clashing = wide.model_copy(update={"record_ids": (*wide.record_ids[1:], "rec-9")})
        with pytest.raises(sqlite3.IntegrityError):
            take(store, clashing)
    assert waiting(store) == ["smp-1", "smp-2"]
    assert store.current(KEY) == first
    assert store.used_records(KEY, ["rec-9", *wide.record_ids]) == {"rec-9"}
    take(store, sample(2, record_ids=wide.record_ids[1:]))
    assert waiting(store) == ["smp-1"]


def test_a_job_is_opened_once_and_forgotten_whole(store):
    first, second = sample(0), sample(1)
    for item in (first, second):
        put(store, item)
    job = take(store, first)
    take(store, first)
    assert not put(store, first)
    assert waiting(store) == ["smp-1"]
    assert store.counts("samples", KEY) == {"taken": 1, "waiting": 1}
    store.reopen(job, {})
    assert waiting(store) == ["smp-0", "smp-1"]
    assert store.used_records(KEY, ["rec-0"]) == set()
    assert store.current(KEY) is None


def test_a_settled_sample_is_not_settled_again(store):
    for number in range(3):
        put(store, sample(number))
    job = take(store, sample(0))
    store.refuse(KEY, {"smp-0": "stale", "smp-1": "stale"}, ())
    store.refuse(KEY, {"smp-1": "held_out"}, ())
    assert store.refusals(KEY) == {"stale": 1}
    store.reopen(job, {"smp-0": "odd"})
    assert store.refusals(KEY) == {"stale": 1, "odd": 1}
    assert waiting(store) == ["smp-2"]


def test_a_transition_from_another_state_changes_nothing(store):
    put(store, sample(0))
    job = take(store, sample(0))
    event = (BINDING.refusal((sample(0), "odd", None), AT), topics.TRAINING)
    assert not store.save(replace(job, state="stored"), expected="produced", events=(event,))
    assert store.unsent(9) == []
    assert store.save(replace(job, state="produced"), expected="open", events=(event, event))
    assert len(store.unsent(9)) == 1


def test_a_release_that_is_read_again_is_not_the_head_again(store):
    for sequence in (5, 6, 5):
        store.advance(release(sequence))
    assert store.head("default").sequence == 6


def test_the_samples_of_a_job_come_in_its_order(store):
    samples = [sample(number) for number in (2, 0, 1)]
    for item in sorted(samples, key=lambda item: item.event_id):
        put(store, item)
    job = replace(job_of(*samples), sample_ids=("smp-2", "smp-0", "smp-1"))
    store.open(job, samples, once_per_record=True)
    assert [item.event_id for item in store.samples(job)] == ["smp-2", "smp-0", "smp-1"]


FAR_MS = record_times_ms([receipt(100)])[0]


def refused(store, number, day):
    """A refused sample of that day."""
    put(store, sample(number, record_ids=(receipt(day, number),)))
    store.refuse(KEY, {f"smp-{number}": "stale"}, ())


def ended(store, number, **end):
    """An ended job of one sample of that day."""
    item = sample(number, record_ids=(receipt(number, number),))
    put(store, item)
    job = take(store, item)
    after = replace(job, **{"state": "finished", "finished_at": AT} | end)
    store.save(after, expected="open")
    return after


def test_the_horizon_of_forgetting_never_goes_back(store):
    refused(store, 10, day=10)
    assert store.forget(KEY, FAR_MS, (), 0) == {"samples": 1, "jobs": 0}
    refused(store, 5, day=5)
    assert store.forget(KEY, FAR_MS, (), 0) == {"samples": 1, "jobs": 0}
    put(store, sample(10, record_ids=(receipt(10, 10),)))
    assert store.refusals(KEY) == {TOO_OLD: 1}
    *_, sent = store.unsent(9)
    assert TOO_OLD in sent[3]


def test_the_last_job_is_kept_without_its_state_too(store):
    ended(store, 0)
    last = ended(store, 1)
    assert store.forget(KEY, FAR_MS, (), 0) == {"samples": 1, "jobs": 1}
    assert store.last(KEY) == last
    assert store.forget(KEY, FAR_MS, (), 0) == {"samples": 0, "jobs": 0}


@pytest.mark.parametrize("state", ["announced", "pending", "rejected", "aborted"])
def test_a_job_is_kept_until_it_is_judged_and_its_content_dropped(store, state):
    job = ended(
        store, 0, state=state, content_id="lora-0", candidate_id=candidate_id("x"), proposes=True
    )
    ended(store, 1)
    assert store.forget(KEY, FAR_MS, (), 0) == {"samples": 0, "jobs": 0}
    if state in ("rejected", "aborted"):
        store.drop([item.job_id for item in store.lost("default")])
    else:
        assert store.lost("default") == []
        store.save(replace(job, state="published"), expected=state)
    assert store.forget(KEY, FAR_MS, (), 0) == {"samples": 1, "jobs": 1}


def test_the_newest_rejections_stay_as_long_as_a_recipe_is_shown_them(store):
    for number, state in enumerate(("rejected", "refused", "rejected", "finished")):
        ended(store, number, state=state)
    assert [job.state for job in store.rejections(KEY, 2)] == ["refused", "rejected"]
    assert store.forget(KEY, FAR_MS, (), 2)["jobs"] == 1
    assert len(store.rejections(KEY, 9)) == 2


def test_a_unit_that_waits_is_parsed_once(store, monkeypatch):
    """A grid of long rollouts arrives one by one, and each arrival asks for the window."""
    from reefkit.jobs import store as module

    parsed, load = [], module.load_unit
    monkeypatch.setattr(module, "load_unit", lambda *row: parsed.append(1) or load(*row))
    for number in range(20):
        put(store, sample(number))
        assert waiting(store) == [f"smp-{n}" for n in range(number + 1)]
    assert len(parsed) == 20
    job = take(store, *store.window(KEY, 99)[:5])
    assert [item.event_id for item in store.samples(job)] == list(job.sample_ids)
    assert len(parsed) == 20
    store.reopen(job, {"smp-0": "odd"})
    assert waiting(store) == [f"smp-{n}" for n in range(1, 20)]
    assert store.window(KEY, 2) == [sample(1), sample(2)]


def test_the_head_of_the_start_is_the_head(store):
    """A forged event may have been of a sequence that no release reaches."""
    for number in (5, 999):
        store.advance(release(number))
    store.advance(release(6))
    assert store.head("default") == release(999)
    store.advance(release(6), is_head=True)
    assert store.head("default") == release(6)
