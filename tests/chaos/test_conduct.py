"""Failures without a reason and a loop that stands still are found and named."""

from dataclasses import replace

import pytest

from reefcommon import topics
from tests.chaos.checker import all_held, check
from tests.chaos.conduct import ALL_READ_S, no_request_failed
from tests.chaos.facts import Answer
from tests.chaos.sound import (
    NOW,
    Planted,
    assert_found,
    dead,
    failed,
    fault,
    sound,
    with_event,
)

PLANTED: Planted = {
    "dead letter": (
        lambda f: with_event(f, topics.FEEDBACK, dead()),
        "nothing given up",
        "dead letter of experience from reef.feedback.v1/3/7: no",
    ),
    "failure without a reason": (
        lambda f: failed(f, NOW),
        "failures explained",
        "chat 502 upstream_failed",
    ),
    "failure while only the broker is away": (
        lambda f: failed(fault(f, "tansu", at=NOW - 10, recovered_at=NOW - 5), NOW - 8),
        "failures explained",
        "without a reason",
    ),
    "failure after all had recovered": (
        lambda f: failed(fault(f, "engine", at=NOW - 10, recovered_at=NOW - 5), NOW),
        "failures explained",
        "without a reason",
    ),
    "failure before anything was broken": (
        lambda f: failed(fault(f, "engine", at=NOW - 10, recovered_at=NOW - 5), NOW - 12),
        "failures explained",
        "without a reason",
    ),
    "not recovered": (
        lambda f: fault(f, "engine", at=NOW - 9, recovered_at=None),
        "loop goes on",
        "fault 2 (kill engine): the broker is away",
    ),
    "nothing learnt after it": (
        lambda f: fault(f, "trainer", at=NOW + 5, recovered_at=NOW + 7),
        "loop goes on",
        "no step after fault 2 (kill trainer)",
    ),
    "nothing learnt since it was over": (
        lambda f: fault(f, "trainer", at=NOW - 0.5, recovered_at=NOW + 7),
        "loop goes on",
        "no step after fault 2 (kill trainer)",
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_found_and_named(planted):
    assert_found(*PLANTED[planted])


def test_a_failure_is_explained_by_the_fault_that_it_fell_into():
    facts = failed(fault(sound(), "engine", at=NOW - 10, recovered_at=NOW - 5), NOW - 8)
    assert all_held(check(facts))
    bent = failed(
        fault(sound(), "upstream", at=NOW - 10, recovered_at=NOW - 5, kind="upstream"), NOW - 8
    )
    assert all_held(check(bent))
    unsure = Answer(
        "d", 0, NOW - 8, NOW - 7, 503, key="k", error='{"error": {"code": "keys_unavailable"}}'
    )
    assert all_held(
        check(
            fault(
                replace(sound(), answers=(*sound().answers, unsure)),
                "experience",
                at=NOW - 10,
                recovered_at=NOW - 5,
            )
        )
    ), "whether a key is new is asked of the store"
    late = replace(sound(), happened=(), answers=(*sound().answers, unsure))
    for since_s, held in ((ALL_READ_S - 1, True), (ALL_READ_S + 1, False)):
        facts = fault(late, "experience", at=NOW - 90, recovered_at=unsure.sent_at - since_s)
        assert all_held(check(facts)) is held, "for so long after, and no longer"
    full = failed(fault(sound(), "tansu", at=NOW - 10, recovered_at=NOW - 5, kind="disk"), NOW - 8)
    assert all_held(check(full))


def test_where_no_request_may_fail_an_explained_failure_is_one_too():
    facts = failed(fault(sound(), "engine", at=NOW - 10, recovered_at=NOW - 5), NOW - 8)
    assert no_request_failed(sound()).held
    assert no_request_failed(facts).broken == ("failed: chat 502 upstream_failed",)


def test_a_client_that_left_holds_nothing_and_has_not_failed():
    gone = Answer("e", 0, NOW, NOW + 1, 200, receipt="rec-77", left=True)
    assert all_held(check(replace(sound(), answers=(*sound().answers, gone))))
