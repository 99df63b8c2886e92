"""The trainer's file alone: what a transaction did not finish it has not begun, and what was settled stays so."""

import sqlite3
from dataclasses import replace

import pytest

from reefcommon.errors import Transient
from reefcommon.ids import record_times_ms
from reefkit.retention import TOO_OLD
from services.trainer.domain import Start, open_job
from services.trainer.ledger import SqliteLedger
from tests.recipes.samples import AT, sample
from tests.trainer.rig import release
from tests.trainer.test_domain import BINDING
from tests.trainer.test_retention import receipt

KEY = BINDING.key


@pytest.fixture
def ledger(tmp_path):
    made = SqliteLedger(tmp_path / "ledger.sqlite")
    yield made
    made.close()


def waiting(ledger):
    return [one.event_id for one in ledger.waiting(KEY)]


def job_of(*samples):
    return open_job(BINDING, release(5), samples, Start(), AT)


def test_every_commit_is_on_the_disk_before_it_returns(ledger):
    assert ledger._rows("pragma synchronous") == [(2,)]
    assert ledger._rows("pragma journal_mode") == [("wal",)]


@pytest.mark.parametrize("how", ["the disk is full", "a record was taken"])
def test_a_job_that_cannot_be_opened_whole_is_not_opened(ledger, how):
    """It fails at its last rows: neither is the job there, nor are its samples gone; with room again it is opened."""
    for number in range(3):
        ledger.put(KEY, sample(number))
    taken, wide = (
        sample(0, record_ids=("rec-9",)),
        sample(1, record_ids=tuple(f"rec-{n:0200}" for n in range(9, 400))),
    )
    ledger.open(job_of(taken), [taken])
    if how == "the disk is full":
        (pages,) = ledger._rows("pragma page_count")[0]
        ledger._rows(f"pragma max_page_count = {pages + 2}")
        with pytest.raises(Transient, match="disk full"):
            ledger.open(job_of(wide), [wide])
        ledger._rows("pragma max_page_count = 1000000")
    else:
        clashing = replace_records(wide, "rec-9")
        with pytest.raises(sqlite3.IntegrityError):
            ledger.open(job_of(clashing), [clashing])
    assert waiting(ledger) == ["smp-1", "smp-2"]
    assert ledger.unfinished(KEY) == job_of(taken)
    assert ledger.trained(KEY, ["rec-9", *wide.record_ids]) == {"rec-9"}
    other = sample(2, record_ids=wide.record_ids[1:])
    ledger.open(job_of(other), [other])
    assert waiting(ledger) == ["smp-1"]


def replace_records(one, *records):
    return one.model_copy(update={"record_ids": (*one.record_ids[1:], *records)})


def test_a_job_is_opened_once_and_forgotten_whole(ledger):
    first, second = sample(0), sample(1)
    for one in (first, second):
        ledger.put(KEY, one)
    ledger.open(job_of(first), [first])
    ledger.open(job_of(first), [first])
    assert not ledger.put(KEY, first)
    assert (waiting(ledger), ledger.counts(KEY)) == (["smp-1"], {"taken": 1, "waiting": 1})
    ledger.reopen(job_of(first))
    assert (waiting(ledger), ledger.trained(KEY, ["rec-0"]), ledger.unfinished(KEY)) == (
        ["smp-0", "smp-1"],
        set(),
        None,
    )


def test_what_is_settled_is_not_settled_otherwise(ledger):
    """A refusal that comes too late, of a sample that a job has; and one that was refused already keeps its reason."""
    first, second, third = sample(0), sample(1), sample(2)
    for one in (first, second, third):
        ledger.put(KEY, one)
    ledger.open(job_of(first), [first])
    ledger.refuse(KEY, [("smp-0", "stale", 3), ("smp-1", "stale", 3)], AT)
    ledger.refuse(KEY, [("smp-1", "held_out", None)], AT)
    assert [(one.event_id, reason, lag) for one, reason, lag, _ in ledger.untold(KEY)] == [
        ("smp-1", "stale", 3)
    ]
    ledger.told(KEY, ["smp-1"])
    assert ledger.untold(KEY) == []
    ledger.save(replace(job_of(first), state="failed", reason="odd", finished_at=AT))
    assert [(one.event_id, reason) for one, reason, _, _ in ledger.untold(KEY)] == [
        ("smp-0", "odd")
    ]
    assert ledger.counts(KEY) == {"refused": 2, "waiting": 1}


def test_a_release_that_is_read_again_is_not_the_head_again(ledger):
    for sequence in (5, 6, 5):
        ledger.advance(release(sequence))
    head = ledger.head("default")
    assert head is not None
    assert head.sequence == 6


def test_the_samples_of_a_job_come_in_its_order(ledger):
    """A restart makes the same step: the learner sees them as it did."""
    samples = [sample(number) for number in (2, 0, 1)]
    for one in sorted(samples, key=lambda one: one.event_id):
        ledger.put(KEY, one)
    job = replace(job_of(*samples), sample_ids=("smp-2", "smp-0", "smp-1"))
    ledger.open(job, samples)
    assert [one.event_id for one in ledger.batch(job)] == ["smp-2", "smp-0", "smp-1"]


FAR_MS = record_times_ms([receipt(100)])[0]


def refused(ledger, number, day):
    """A sample of that day, refused and told."""
    ledger.put(KEY, sample(number, record_ids=(receipt(day, number),)))
    ledger.refuse(KEY, [(f"smp-{number}", "stale", 3)], AT)
    ledger.told(KEY, [f"smp-{number}"])


def trained(ledger, number, **end):
    """A finished job of one sample of that day."""
    one = sample(number, record_ids=(receipt(number, number),))
    ledger.put(KEY, one)
    job = replace(job_of(one), state="complete", finished_at=AT, **end)
    ledger.open(job_of(one), [one])
    ledger.save(job)
    return job


def test_what_is_forgotten_later_and_is_older_opens_no_way_back_for_what_was_forgotten_before(
    ledger,
):
    refused(ledger, 10, day=10)
    assert ledger.forget(KEY, FAR_MS, ()) == {"samples": 1, "jobs": 0}
    refused(ledger, 5, day=5)
    assert ledger.forget(KEY, FAR_MS, ()) == {"samples": 1, "jobs": 0}
    ledger.put(KEY, sample(10, record_ids=(receipt(10, 10),)))
    assert ledger.refusals(KEY) == {TOO_OLD: 1}


def test_of_a_refusal_that_was_told_the_identity_is_kept_for_a_while_and_of_another_all(ledger):
    ledger.put(KEY, sample(0, record_ids=(receipt(0),)))
    ledger.refuse(KEY, [("smp-0", "stale", 3)], AT)
    assert ledger.forget(KEY, FAR_MS, ()) == {"samples": 0, "jobs": 0}
    assert [one.event_id for one, *_ in ledger.untold(KEY)] == ["smp-0"]
    ledger.told(KEY, ["smp-0"])
    assert ledger._rows("select sample_id, body from samples") == [("smp-0", None)]
    assert ledger.forget(KEY, FAR_MS, ()) == {"samples": 1, "jobs": 0}


def test_the_last_job_is_kept_without_its_state_too(ledger):
    """Its state can be lost, as with another disk; what it waits for and where its recipe stands is asked of the ledger."""
    trained(ledger, 0)
    last = trained(ledger, 1)
    assert ledger.forget(KEY, FAR_MS, ()) == {"samples": 1, "jobs": 1}
    assert ledger.last(KEY) == last
    assert ledger.forget(KEY, FAR_MS, ()) == {"samples": 0, "jobs": 0}


@pytest.mark.parametrize("verdict", [None, "pending", "rejected"])
def test_a_job_is_kept_while_its_candidate_is_judged_or_its_content_lies_in_the_store(
    ledger, verdict
):
    job = trained(ledger, 0, proposes=True, content_id="lora-0")
    if verdict is not None:
        ledger.judge(job.candidate_id, verdict)
    trained(ledger, 1)
    assert ledger.forget(KEY, FAR_MS, ()) == {"samples": 0, "jobs": 0}
    if verdict == "rejected":
        ledger.drop([one.job_id for one in ledger.lost("default")])
    else:
        ledger.judge(job.candidate_id, "published")
    assert ledger.forget(KEY, FAR_MS, ()) == {"samples": 1, "jobs": 1}
