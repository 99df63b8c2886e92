"""Faults of the release chain are found and named."""

from dataclasses import replace

import pytest

from reefcommon import topics
from tests.chaos.facts import Heads
from tests.chaos.sound import Planted, assert_found, changed, release, with_event, without

FORKED = release(2, "r2-x", "r1-b")
PLANTED: Planted = {
    "gap": (
        lambda f: replace(without(f, "r1-b"), heads={"default": Heads("r2-c", ("r2-c", "r0-a"))}),
        "chain whole",
        "gap: default has no release 1",
    ),
    "fork": (
        lambda f: replace(
            with_event(f, topics.RELEASES, FORKED),
            heads={"default": Heads("r2-x", ("r2-x", "r2-c", "r1-b", "r0-a"))},
        ),
        "chain whole",
        "fork: r1-b of default has 2 children",
    ),
    "release on a parent that nobody knows": (
        lambda f: with_event(without(f, "r2-c"), topics.RELEASES, release(2, "r2-c", "r9-z")),
        "chain whole",
        "fork: r2-c of default follows r9-z, not r1-b",
    ),
    "a release published with two contents": (
        lambda f: with_event(f, topics.RELEASES, release(1, "r1-b", "r0-z")),
        "chain whole",
        "twice: release r1-b",
    ),
    "head of Redis behind": (
        lambda f: replace(f, heads={"default": Heads("r1-b", ("r1-b", "r0-a"))}),
        "heads agree",
        "Redis has 2 releases, the log 3",
    ),
    "head is not the end of its chain": (
        lambda f: replace(f, heads={"default": Heads("r1-b", ("r2-c", "r1-b", "r0-a"))}),
        "heads agree",
        "the head in Redis is r1-b, in the log r2-c",
    ),
    "no head": (lambda f: replace(f, heads={}), "heads agree", "Redis has no head of default"),
    "answered under no release": (
        lambda f: replace(f, answers=(replace(f.answers[0], release_id="r7-q"), *f.answers[1:])),
        "answered by the chain",
        "which is no release",
    ),
    "recorded under another release": (
        lambda f: changed(f, "rec-0", release_id="r1-b"),
        "answered by the chain",
        "answered under r0-a and recorded under r1-b",
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_found_and_named(planted):
    assert_found(*PLANTED[planted])
