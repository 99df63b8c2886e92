"""Faults of receipts, order and keys are found and named."""

from dataclasses import replace

import pytest

from reefcommon import topics
from tests.chaos.facts import StoredRecord
from tests.chaos.sound import (
    Planted,
    assert_found,
    inference,
    moved,
    reordered,
    with_event,
    without,
)

OTHER = inference("rec-1", "something else")
PLANTED: Planted = {
    "loss in the log": (lambda f: without(f, "rec-1"), "receipts in the log", "lost: rec-1"),
    "duplicate with other content": (
        lambda f: with_event(f, topics.INFERENCES, OTHER),
        "receipts in the log",
        "twice: rec-1",
    ),
    "another answer recorded": (
        lambda f: replace(f, answers=(replace(f.answers[0], content="hello"), *f.answers[1:])),
        "receipts in the log",
        "other answer: rec-0",
    ),
    "loss in the store": (
        lambda f: replace(f, records=f.records[1:]),
        "receipts in the store",
        "lost: rec-0",
    ),
    "stored twice": (
        lambda f: replace(f, records=(*f.records, f.records[0])),
        "receipts in the store",
        "twice: rec-0",
    ),
    "other bytes in the store": (
        lambda f: replace(f, records=(replace(f.records[0], digest="x"), *f.records[1:])),
        "receipts in the store",
        "other bytes: rec-0",
    ),
    "invented row": (
        lambda f: replace(f, records=(*f.records, StoredRecord("rec-9", "x", "", "ok"))),
        "receipts in the store",
        "invented: rec-9",
    ),
    "unacknowledged event not stored": (
        lambda f: with_event(f, topics.INFERENCES, inference("rec-8", "x")),
        "receipts in the store",
        "missing: rec-8",
    ),
    "reorder": (reordered, "order kept", "reordered: c: turn 0 (rec-0) lies at 0/1"),
    "turns in two partitions": (moved, "order kept", "reordered: c: turn 0 (rec-0) lies at 5/0"),
    "two answers under one key": (
        lambda f: replace(f, answers=(*f.answers, replace(f.answers[2], content="hello"))),
        "one answer a key",
        "key rec-2 got 2 different answers",
    ),
    "another receipt under a key": (
        lambda f: replace(f, answers=(*f.answers[:2], replace(f.answers[2], receipt="rec-1"))),
        "one answer a key",
        "key rec-2 got the receipt rec-1",
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_found_and_named(planted):
    assert_found(*PLANTED[planted])
