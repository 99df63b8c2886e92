"""Faults of training are found and named."""

from dataclasses import replace

import pytest

from reefcommon import topics
from tests.chaos.facts import LedgerJob
from tests.chaos.sound import (
    Planted,
    assert_found,
    changed,
    release,
    sample,
    step,
    with_event,
    without,
)

PLANTED: Planted = {
    "sample trained twice": (
        lambda f: replace(
            with_event(f, topics.TRAINING, step("job-2", ("smp-0",))),
            jobs=(*f.jobs, LedgerJob("job-2", "b", "announced", ("smp-0",))),
        ),
        "trained once",
        "trained twice: smp-0 by sao in job-1, job-2",
    ),
    "record trained twice by two samples": (
        lambda f: replace(
            with_event(
                with_event(f, topics.SAMPLES, sample(0, event_id="smp-9", report_id=None)),
                topics.TRAINING,
                step("job-2", ("smp-9",)),
            ),
            jobs=(*f.jobs, LedgerJob("job-2", "b", "announced", ("smp-9",))),
        ),
        "trained once",
        "trained twice: rec-0 by sao in job-1, job-2",
    ),
    "sample twice in a job": (
        lambda f: changed(f, "job-1", sample_ids=("smp-0", "smp-1", "smp-2", "smp-2")),
        "trained once",
        "holds a sample twice",
    ),
    "job told with two batches": (
        lambda f: with_event(f, topics.TRAINING, step("job-1", ("smp-2", "smp-1", "smp-0"))),
        "trained once",
        "job job-1 was told with 2 different",
    ),
    "aborted exchange trained": (
        lambda f: changed(f, "rec-2", outcome="aborted"),
        "whole exchanges trained",
        "aborted exchange rec-2 was trained on in job-1",
    ),
    "exchange that nobody recorded trained": (
        lambda f: without(f, "rec-2"),
        "whole exchanges trained",
        "unknown exchange rec-2 was trained on in job-1",
    ),
    "untrainable sample trained": (
        lambda f: changed(f, "smp-1", untrainable="no_tokens"),
        "whole exchanges trained",
        "untrainable (no_tokens) sample smp-1",
    ),
    "job never told": (
        lambda f: replace(f, jobs=(*f.jobs, LedgerJob("job-9", "b", "announced", ()))),
        "jobs agree",
        "job-9 is complete in the ledger and was never",
    ),
    "job unknown to the ledger": (
        lambda f: replace(f, jobs=()),
        "jobs agree",
        "the ledger does not know it",
    ),
    "too stale": (
        lambda f: changed(
            with_event(f, topics.RELEASES, release(3, "r3-d", "r2-c")),
            "job-1",
            base_release_id="r3-d",
        ),
        "staleness obeyed",
        "stale: smp-0 in job-1 is 3 releases behind r3-d",
    ),
    "from the future": (
        lambda f: changed(f, "smp-0", load_id="i:1"),
        "staleness obeyed",
        "is -1 releases behind",
    ),
    "other incarnation": (
        lambda f: changed(f, "smp-0", load_id="j:0"),
        "staleness obeyed",
        "is None releases behind",
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_found_and_named(planted):
    assert_found(*PLANTED[planted])
