"""How the system bore it: no event given up, each failure with a reason, the loop goes on."""

from reefcommon.events import (
    CandidateEvaluated,
    DeadLettered,
    Event,
    InferenceRecorded,
    ReleasePublished,
    ReleaseRejected,
    SampleReady,
    StepCompleted,
)
from tests.chaos.facts import Facts
from tests.chaos.reading import Stated, at_of, describe, of_type

# A request may fail while one of these is being broken, or has not recovered; everything else must
# be borne.
EXPLAINS_FAILURES = frozenset({"gateway", "engine", "valkey", "upstream", "disk", "serve"})
# Whether a key that a client chose is new is asked of the store, which has to have read the log:
# where that cannot be said, the answer to a request with a key is 503, by design.
KEYS_NEED = EXPLAINS_FAILURES | {"experience", "tansu", "objectstore"}
# That needs every partition read, and recovered means that one was. 14 s were seen once; what they
# went on is not known yet.
ALL_READ_S = 20.0


def nothing_given_up(facts: Facts) -> Stated:
    """No event of this load is poison, so none may end as a dead letter."""
    dead = [event for _, event in of_type(facts, DeadLettered)]
    broken = tuple(
        f"dead letter of {event.group} from {event.topic}/{event.partition}/{event.offset}: {event.reason[:200]}"
        for event in dead
    )
    return Stated("nothing given up", "no event became a dead letter", len(facts.log), broken)


def failures_explained(facts: Facts) -> Stated:
    """A request fails only while something that it needs is broken."""
    windows = {
        parts: [
            (h.began_at, (h.recovered_at or float("inf")) + more_s)
            for h in facts.happened
            if parts & {*h.parts, h.kind}
        ]
        for parts, more_s in ((EXPLAINS_FAILURES, 0.0), (KEYS_NEED, ALL_READ_S))
    }
    broke = {
        event.event_id: at_of(event)
        for _, event in of_type(facts, InferenceRecorded)
        if event.outcome != "ok"
    }
    # A stream that broke off under a key is what is answered under that key from then on: its
    # reason lies where it broke.
    calls = [
        (
            min(a.sent_at, broke.get(a.key, a.sent_at)),
            a.ended_at,
            a.complete or a.left,
            f"chat {a.status} {a.error}",
        )
        for a in facts.answers
    ]
    calls += [
        (r.sent_at, r.ended_at, r.status == 202, f"report {r.status} {r.error}")
        for r in facts.reports
    ]
    broken = [
        f"failed at {sent:.1f} for {ended - sent:.1f} s without a reason: {words[:200]}"
        for sent, ended, fine, words in calls
        if not fine
        and not any(
            sent <= until and since <= ended
            for since, until in windows[
                KEYS_NEED if "keys_unavailable" in words else EXPLAINS_FAILURES
            ]
        )
    ]
    return Stated(
        "failures explained",
        "requests fail only while the gateway, the engine, Redis or the disk is broken",
        len(calls),
        tuple(broken),
    )


def no_request_failed(facts: Facts) -> Stated:
    """For what has to be borne without any client noticing: one part away for long, keys or not."""
    calls = [(a.complete or a.left, f"chat {a.status} {a.error}") for a in facts.answers]
    calls += [(r.status == 202, f"report {r.status} {r.error}") for r in facts.reports]
    broken = tuple(f"failed: {words[:200]}" for fine, words in calls if not fine)
    return Stated(
        "no request failed", "every request and every report was answered", len(calls), broken
    )


def loop_goes_on(facts: Facts) -> Stated:
    """Every fault was recovered from, and after it came a sample, a step and a verdict."""
    signs: tuple[tuple[str, tuple[type[Event], ...]], ...] = (
        ("sample", (SampleReady,)),
        ("step", (StepCompleted,)),
        ("verdict", (CandidateEvaluated,)),
        ("release or rejection", (ReleasePublished, ReleaseRejected)),
    )
    last = {
        word: max((at_of(e.event) for e in facts.log if isinstance(e.event, kinds)), default=0.0)
        for word, kinds in signs
    }
    broken = []
    for fault in facts.happened:
        if fault.recovered_at is None:
            broken.append(f"not recovered: {describe(fault)}: {fault.why_not}")
        else:
            broken += [
                f"no {word} after {describe(fault)}"
                for word, at in last.items()
                if at < fault.over_at
            ]
    return Stated(
        "loop goes on",
        "after every fault come samples, steps and verdicts, by themselves",
        len(facts.happened),
        tuple(broken),
    )
