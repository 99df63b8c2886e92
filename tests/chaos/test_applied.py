"""Faults of reports and of their samples are found and named."""

from dataclasses import replace

import pytest

from reefcommon import topics
from tests.chaos.applied import reports_applied_once
from tests.chaos.checker import all_held, check
from tests.chaos.facts import StoredReport
from tests.chaos.sound import (
    APART,
    JOINED,
    Planted,
    apart,
    assert_found,
    changed,
    joined,
    resampled,
    sample,
    sound,
    with_event,
    without,
)

PLANTED: Planted = {
    "lost report": (lambda f: without(f, "rep-1"), "reports applied once", "lost: report rep-1"),
    "report never joined": (
        lambda f: replace(
            f, stored_reports=(StoredReport("rep-0", "parked", None), *f.stored_reports[1:])
        ),
        "reports applied once",
        "not applied: report rep-0 is parked",
    ),
    "report not stored": (
        lambda f: replace(f, stored_reports=f.stored_reports[1:]),
        "reports applied once",
        "report rep-0 is absent",
    ),
    "report applied twice": (
        lambda f: with_event(
            replace(f, samples=(*f.samples, sample(0, event_id="smp-9"))),
            topics.SAMPLES,
            sample(0, event_id="smp-9"),
        ),
        "reports applied once",
        "report rep-0: rec-0 has tokens in 2 samples",
    ),
    "sample twice in the store": (
        lambda f: replace(f, samples=(*f.samples, sample(0))),
        "reports applied once",
        "report rep-0: smp-0 is in the store 2 times",
    ),
    "sample in the log alone": (
        lambda f: with_event(f, topics.SAMPLES, sample(0, event_id="smp-9")),
        "reports applied once",
        "report rep-0: smp-9 is in the log alone",
    ),
    "sample in the store alone": (
        lambda f: without(f, "smp-0"),
        "reports applied once",
        "report rep-0: smp-0 is in the store alone",
    ),
    "sample told with two contents": (
        lambda f: with_event(f, topics.SAMPLES, sample(0, logprobs=(-1.0, -2.0))),
        "reports applied once",
        "report rep-0: smp-0 has several contents",
    ),
    "report joined without a sample": (
        lambda f: replace(without(f, "smp-0"), samples=f.samples[1:]),
        "reports applied once",
        "report rep-0: rec-0 has tokens in 0 samples",
    ),
    "turn in two samples of a report": (
        lambda f: resampled(
            f,
            joined(),
            apart(),
            sample(3, event_id="smp-5", record_ids=("rec-3",)),
        ),
        "reports applied once",
        "report rep-3: rec-3 has tokens in 2 samples",
    ),
    "turn in no sample": (
        lambda f: resampled(f, joined()),
        "reports applied once",
        "report rep-3: rec-5 has tokens in 0 samples",
    ),
    "sampled token masked": (
        lambda f: resampled(f, joined(loss_mask=(1, 1, 0, 0, 1)), apart()),
        "reports applied once",
        "report rep-3: rec-4 has tokens in 0 samples",
    ),
    "environment's token trained": (
        lambda f: resampled(f, joined(loss_mask=(1, 1, 1, 1, 1)), apart()),
        "reports applied once",
        "smp-3 trains on 1 tokens that it did not sample",
    ),
    "token of another answer": (
        lambda f: resampled(f, joined(tokens=(1, 2, 3, 8, 9, 5, 6)), apart()),
        "reports applied once",
        "smp-3 does not begin with the tokens of rec-3",
    ),
    "turn joined that the tokens do not join": (
        lambda f: resampled(f, joined(record_ids=(*JOINED, *APART))),
        "reports applied once",
        "smp-3 does not begin with the tokens of rec-5",
    ),
    "answer of nobody's report": (
        lambda f: resampled(
            f, joined(), apart(), sample(3, event_id="smp-5", record_ids=("rec-2",))
        ),
        "reports applied once",
        "report rep-3: rec-2 is trained on without a reference",
    ),
    "answer named twice in a sample": (
        lambda f: resampled(f, joined(record_ids=("rec-3", "rec-3")), apart()),
        "reports applied once",
        "trains on 2 tokens that it did not sample",
    ),
    "untrainable for no reason": (
        lambda f: resampled(
            f,
            sample(
                3,
                record_ids=(*JOINED, *APART),
                untrainable="no_tokens",
                tokens=(),
                loss_mask=(),
                logprobs=(),
            ),
        ),
        "reports applied once",
        "report rep-3: is no_tokens, and all its exchanges can be trained on",
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_found_and_named(planted):
    assert_found(*PLANTED[planted])


def test_a_flawed_exchange_makes_its_report_one_untrainable_sample():
    bare = {"untrainable": "no_tokens", "tokens": (), "loss_mask": (), "logprobs": ()}
    facts = changed(sound(), "rec-4", completions=())
    held = resampled(facts, sample(3, record_ids=(*JOINED, *APART), **bare))
    assert all_held(check(held, (reports_applied_once,)))
    parted = resampled(facts, sample(3, record_ids=JOINED, **bare), apart())
    assert not all_held(check(parted, (reports_applied_once,)))
