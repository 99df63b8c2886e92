"""The checker: a sound run holds, and every planted fault is found and named by the invariant that it breaks, and by no other."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from reefcommon import events, topics
from tests.chaos.applied import reports_applied_once
from tests.chaos.checker import INVARIANTS, all_held, check
from tests.chaos.collect import digest
from tests.chaos.conduct import ALL_READ_S, no_request_failed
from tests.chaos.facts import (
    Answer,
    Facts,
    Happened,
    Heads,
    LedgerJob,
    Logged,
    Reported,
    StoredRecord,
    StoredReport,
)

AT = datetime(2026, 1, 1, tzinfo=UTC)
NOW = AT.timestamp()
TURNS = 3
# A conversation of three turns under one report: the second joins the first, the third neither.
JOINED, APART = ("rec-3", "rec-4"), ("rec-5",)
TOKENS = {"rec-3": ((1, 2), (3, 4)), "rec-4": ((1, 2, 3, 4, 9), (5, 6)), "rec-5": ((1, 8), (7,))}


def seen(prompt: tuple[int, ...], sampled: tuple[int, ...]) -> dict[str, object]:
    """An exchange's fields of tokens."""
    answer = events.Completion(index=0, token_ids=sampled, logprobs=(-1.0,) * len(sampled))
    return {"prompt_token_ids": prompt, "completions": (answer,)}


def inference(receipt: str, content: str, **changes) -> events.InferenceRecorded:
    values = {
        "event_id": receipt, "at": AT, "scenario": "default", "outcome": "ok", "release_id": "r0-a", "load_id": "i:0",
        "response": {"choices": [{"message": {"role": "assistant", "content": content}}]},
        **seen(*TOKENS.get(receipt, ((1, 2), (3, 4)))),
    }  # fmt: skip
    return events.InferenceRecorded(**{**values, **changes})


def sample(number: int, **changes) -> events.SampleReady:
    values = {
        "event_id": f"smp-{number}", "at": AT, "scenario": "default", "record_ids": (f"rec-{number}",), "report_id": f"rep-{number}",
        "release_id": "r0-a", "load_id": "i:0", "recorded_at": AT,
        "tokens": (1, 2, 3, 4), "prompt_length": 2, "loss_mask": (1, 1), "logprobs": (-1.0, -1.0),
    }  # fmt: skip
    return events.SampleReady(**{**values, **changes})


def joined(**changes) -> events.SampleReady:
    values = {
        "event_id": "smp-3", "record_ids": JOINED, "tokens": (1, 2, 3, 4, 9, 5, 6),
        "loss_mask": (1, 1, 0, 1, 1), "logprobs": (-1.0, -1.0, 0.0, -1.0, -1.0),
    }  # fmt: skip
    return sample(3, **{**values, **changes})


def apart(**changes) -> events.SampleReady:
    values = {
        "event_id": "smp-4", "record_ids": APART, "tokens": (1, 8, 7), "loss_mask": (1,),
        "logprobs": (-1.0,),
    }  # fmt: skip
    return sample(3, **{**values, **changes})


def resampled(facts: Facts, *samples: events.SampleReady) -> Facts:
    """With these samples of the conversation's report, in the log and in the store alike."""
    kept = [s for s in facts.samples if s.report_id != "rep-3"]
    bare = without(facts, "smp-3", "smp-4")
    log = (*bare.log, *logged(topics.SAMPLES, *samples))
    return replace(bare, log=log, samples=(*kept, *samples))


def step(job: str, sample_ids: tuple[str, ...], **changes) -> events.StepCompleted:
    values = {
        "event_id": job, "at": AT, "scenario": "default", "recipe": "sao", "step": 1, "base_release_id": "r0-a", "sample_ids": sample_ids,
        "duration_s": 1.0,
    }  # fmt: skip
    return events.StepCompleted(**{**values, **changes})


def release(sequence: int, release_id: str, parent_id: str | None) -> events.ReleasePublished:
    body = events.Release(
        release_id=release_id, scenario="default", sequence=sequence, parent_id=parent_id, kind="lora", content_id=f"lora-{sequence}",
        operation="training", load_id=f"i:{sequence}", created_at=AT,
    )  # fmt: skip
    return events.ReleasePublished(event_id=release_id, at=AT, scenario="default", release=body)


def verdict() -> events.CandidateEvaluated:
    candidate = events.CandidateProposed(
        event_id="cnd",
        at=AT,
        scenario="default",
        kind="lora",
        content_id="lora-1",
        base_release_id="r0-a",
    )
    evaluation = events.Evaluation(
        verdict="select", policy="always", reason="", head_release_id="r0-a"
    )
    return events.CandidateEvaluated(
        event_id="evl", at=AT, scenario="default", candidate=candidate, evaluation=evaluation
    )


def logged(topic: topics.Topic, *found: events.Event) -> tuple[Logged, ...]:
    return tuple(
        Logged(topic.name, 0, offset, event, digest(event.model_dump_json().encode()))
        for offset, event in enumerate(found)
    )


def sound() -> Facts:
    """One conversation reported turn by turn and trained on to a release, another as a whole."""
    exchanges = [inference(f"rec-{n}", f"answer {n}") for n in range(2 * TURNS)]
    reports = [
        events.FeedbackReported(
            event_id=f"rep-{n}",
            at=AT,
            scenario="default",
            references=(f"rec-{n}",),
            score=1.0,
            content_digest=f"d{n}",
        )
        for n in range(TURNS)
    ]
    whole = reports[0].model_copy(update={"event_id": "rep-3", "references": (*JOINED, *APART)})
    samples = [*(sample(n) for n in range(TURNS)), joined(), apart()]
    names = tuple(s.event_id for s in samples[:TURNS])
    log = (
        *logged(topics.INFERENCES, *exchanges),
        *logged(topics.FEEDBACK, *reports, whole),
        *logged(topics.SAMPLES, *samples),
        *logged(topics.TRAINING, step("job-1", names)),
        *logged(topics.EVALUATIONS, verdict()),
        *logged(
            topics.RELEASES,
            release(0, "r0-a", None),
            release(1, "r1-b", "r0-a"),
            release(2, "r2-c", "r1-b"),
        ),
    )
    return Facts(
        answers=tuple(
            Answer(
                "c",
                n,
                NOW,
                NOW + 1,
                200,
                True,
                f"rec-{n}",
                f"answer {n}",
                "r0-a",
                key="rec-2" if n == 2 else "",
            )
            for n in range(TURNS)
        ),
        reports=tuple(
            Reported(report.references, NOW, NOW + 1, 202, report.event_id)
            for report in (*reports, whole)
        ),
        log=log,
        records=tuple(
            StoredRecord(p.event.event_id, p.digest, f"answer {n}", "ok")
            for n, p in enumerate(log[: 2 * TURNS])
        ),
        stored_reports=tuple(
            StoredReport(f"rep-{n}", "joined", f"smp-{n}") for n in range(TURNS + 1)
        ),
        samples=tuple(samples),
        jobs=(LedgerJob("job-1", "default/sao", "published", names),),
        heads={"default": Heads("r2-c", ("r2-c", "r1-b", "r0-a"))},
        happened=(Happened(1, "kill", ("tansu",), NOW - 20, NOW - 19, NOW - 18),),
        max_staleness=2,
    )


def with_event(
    facts: Facts, topic: topics.Topic, event: events.Event, *, offset: int = 99, partition: int = 0
) -> Facts:
    return replace(
        facts,
        log=(
            *facts.log,
            Logged(topic.name, partition, offset, event, digest(event.model_dump_json().encode())),
        ),
    )


def without(facts: Facts, *event_ids: str) -> Facts:
    return replace(
        facts, log=tuple(place for place in facts.log if place.event.event_id not in event_ids)
    )


def changed(facts: Facts, event_id: str, **changes) -> Facts:
    log = tuple(
        replace(place, event=place.event.model_copy(update=changes))
        if place.event.event_id == event_id
        else place
        for place in facts.log
    )
    return replace(facts, log=log)


def reordered(facts: Facts) -> Facts:
    first, second, *others = facts.log
    return replace(facts, log=(replace(second, offset=0), replace(first, offset=1), *others))


def moved(facts: Facts) -> Facts:
    return replace(facts, log=(replace(facts.log[0], partition=5), *facts.log[1:]))


def failed(facts: Facts, at: float) -> Facts:
    return replace(
        facts, answers=(*facts.answers, Answer("d", 0, at, at + 1, 502, error="upstream_failed"))
    )


def fault(
    facts: Facts, *parts: str, at: float, recovered_at: float | None, kind: str = "kill"
) -> Facts:
    return replace(
        facts,
        happened=(
            *facts.happened,
            Happened(2, kind, parts, at, at + 1, recovered_at, why_not="the broker is away"),
        ),
    )


def dead() -> events.DeadLettered:
    return events.DeadLettered(
        event_id="dead-1", at=AT, scenario="default", group="experience", topic="reef.feedback.v1", partition=3, offset=7, value="", reason="no",
        attempts=6,
    )  # fmt: skip


OTHER = inference("rec-1", "something else")
FORKED = release(2, "r2-x", "r1-b")
PLANTED: dict[str, tuple[Callable[[Facts], Facts], str, str]] = {
    "loss in the log": (lambda f: without(f, "rec-1"), "receipts in the log", "lost: rec-1"),
    "duplicate with other content": (lambda f: with_event(f, topics.INFERENCES, OTHER), "receipts in the log", "twice: rec-1"),
    "another answer recorded": (
        lambda f: replace(f, answers=(replace(f.answers[0], content="hello"), *f.answers[1:])), "receipts in the log", "other answer: rec-0",
    ),
    "loss in the store": (lambda f: replace(f, records=f.records[1:]), "receipts in the store", "lost: rec-0"),
    "stored twice": (lambda f: replace(f, records=(*f.records, f.records[0])), "receipts in the store", "twice: rec-0"),
    "other bytes in the store": (
        lambda f: replace(f, records=(replace(f.records[0], digest="x"), *f.records[1:])), "receipts in the store", "other bytes: rec-0",
    ),
    "invented row": (
        lambda f: replace(f, records=(*f.records, StoredRecord("rec-9", "x", "", "ok"))), "receipts in the store", "invented: rec-9",
    ),
    "unacknowledged event not stored": (
        lambda f: with_event(f, topics.INFERENCES, inference("rec-8", "x")), "receipts in the store", "missing: rec-8",
    ),
    "lost report": (lambda f: without(f, "rep-1"), "reports applied once", "lost: report rep-1"),
    "report never joined": (
        lambda f: replace(f, stored_reports=(StoredReport("rep-0", "parked", None), *f.stored_reports[1:])), "reports applied once",
        "not applied: report rep-0 is parked",
    ),
    "report not stored": (lambda f: replace(f, stored_reports=f.stored_reports[1:]), "reports applied once", "report rep-0 is absent"),
    "report applied twice": (
        lambda f: with_event(replace(f, samples=(*f.samples, sample(0, event_id="smp-9"))), topics.SAMPLES, sample(0, event_id="smp-9")),
        "reports applied once", "report rep-0: rec-0 has tokens in 2 samples",
    ),
    "sample twice in the store": (
        lambda f: replace(f, samples=(*f.samples, sample(0))), "reports applied once", "report rep-0: smp-0 is in the store 2 times",
    ),
    "sample in the log alone": (
        lambda f: with_event(f, topics.SAMPLES, sample(0, event_id="smp-9")), "reports applied once", "report rep-0: smp-9 is in the log alone",
    ),
    "sample in the store alone": (lambda f: without(f, "smp-0"), "reports applied once", "report rep-0: smp-0 is in the store alone"),
    "sample told with two contents": (
        lambda f: with_event(f, topics.SAMPLES, sample(0, logprobs=(-1.0, -2.0))), "reports applied once", "report rep-0: smp-0 has several contents",
    ),
    "report joined without a sample": (
        lambda f: replace(without(f, "smp-0"), samples=f.samples[1:]), "reports applied once", "report rep-0: rec-0 has tokens in 0 samples",
    ),
    "turn in two samples of a report": (
        lambda f: resampled(
            f, joined(), apart(), sample(3, event_id="smp-5", record_ids=("rec-3",)),
        ), "reports applied once", "report rep-3: rec-3 has tokens in 2 samples",
    ),
    "turn in no sample": (lambda f: resampled(f, joined()), "reports applied once", "report rep-3: rec-5 has tokens in 0 samples"),
    "sampled token masked": (
        lambda f: resampled(f, joined(loss_mask=(1, 1, 0, 0, 1)), apart()), "reports applied once", "report rep-3: rec-4 has tokens in 0 samples",
    ),
    "environment's token trained": (
        lambda f: resampled(f, joined(loss_mask=(1, 1, 1, 1, 1)), apart()), "reports applied once", "smp-3 trains on 1 tokens that it did not sample",
    ),
    "token of another answer": (
        lambda f: resampled(f, joined(tokens=(1, 2, 3, 8, 9, 5, 6)), apart()), "reports applied once", "smp-3 does not begin with the tokens of rec-3",
    ),
    "turn joined that the tokens do not join": (
        lambda f: resampled(f, joined(record_ids=(*JOINED, *APART))), "reports applied once", "smp-3 does not begin with the tokens of rec-5",
    ),
    "answer of nobody's report": (
        lambda f: resampled(f, joined(), apart(), sample(3, event_id="smp-5", record_ids=("rec-2",))),
        "reports applied once", "report rep-3: rec-2 is trained on without a reference",
    ),
    "answer named twice in a sample": (
        lambda f: resampled(f, joined(record_ids=("rec-3", "rec-3")), apart()), "reports applied once", "trains on 2 tokens that it did not sample",
    ),
    "untrainable for no reason": (
        lambda f: resampled(f, sample(3, record_ids=(*JOINED, *APART), untrainable="no_tokens", tokens=(), loss_mask=(), logprobs=())),
        "reports applied once", "report rep-3: is no_tokens, and all its exchanges can be trained on",
    ),
    "reorder": (reordered, "order kept", "reordered: c: turn 0 (rec-0) lies at 0/1"),
    "turns in two partitions": (moved, "order kept", "reordered: c: turn 0 (rec-0) lies at 5/0"),
    "two answers under one key": (
        lambda f: replace(f, answers=(*f.answers, replace(f.answers[2], content="hello"))), "one answer a key", "key rec-2 got 2 different answers",
    ),
    "another receipt under a key": (
        lambda f: replace(f, answers=(*f.answers[:2], replace(f.answers[2], receipt="rec-1"))), "one answer a key", "key rec-2 got the receipt rec-1",
    ),
    "sample trained twice": (
        lambda f: replace(with_event(f, topics.TRAINING, step("job-2", ("smp-0",))), jobs=(*f.jobs, LedgerJob("job-2", "b", "announced", ("smp-0",)))),
        "trained once", "trained twice: smp-0 by sao in job-1, job-2",
    ),
    "record trained twice by two samples": (
        lambda f: replace(
            with_event(with_event(f, topics.SAMPLES, sample(0, event_id="smp-9", report_id=None)), topics.TRAINING, step("job-2", ("smp-9",))),
            jobs=(*f.jobs, LedgerJob("job-2", "b", "announced", ("smp-9",))),
        ),
        "trained once", "trained twice: rec-0 by sao in job-1, job-2",
    ),
    "sample twice in a job": (lambda f: changed(f, "job-1", sample_ids=("smp-0", "smp-1", "smp-2", "smp-2")), "trained once", "holds a sample twice"),
    "job told with two batches": (
        lambda f: with_event(f, topics.TRAINING, step("job-1", ("smp-2", "smp-1", "smp-0"))), "trained once", "job job-1 was told with 2 different",
    ),
    "aborted exchange trained": (
        lambda f: changed(f, "rec-2", outcome="aborted"), "whole exchanges trained", "aborted exchange rec-2 was trained on in job-1",
    ),
    "exchange that nobody recorded trained": (
        lambda f: without(f, "rec-2"), "whole exchanges trained", "unknown exchange rec-2 was trained on in job-1",
    ),
    "untrainable sample trained": (
        lambda f: changed(f, "smp-1", untrainable="no_tokens"), "whole exchanges trained", "untrainable (no_tokens) sample smp-1",
    ),
    "job never told": (
        lambda f: replace(f, jobs=(*f.jobs, LedgerJob("job-9", "b", "announced", ()))), "jobs agree", "job-9 is complete in the ledger and was never",
    ),
    "job unknown to the ledger": (lambda f: replace(f, jobs=()), "jobs agree", "the ledger does not know it"),
    "too stale": (
        lambda f: changed(with_event(f, topics.RELEASES, release(3, "r3-d", "r2-c")), "job-1", base_release_id="r3-d"),
        "staleness obeyed",
        "stale: smp-0 in job-1 is 3 releases behind r3-d",
    ),
    "from the future": (lambda f: changed(f, "smp-0", load_id="i:1"), "staleness obeyed", "is -1 releases behind"),
    "other incarnation": (lambda f: changed(f, "smp-0", load_id="j:0"), "staleness obeyed", "is None releases behind"),
    "gap": (lambda f: replace(without(f, "r1-b"), heads={"default": Heads("r2-c", ("r2-c", "r0-a"))}), "chain whole", "gap: default has no release 1"),
    "fork": (
        lambda f: replace(with_event(f, topics.RELEASES, FORKED), heads={"default": Heads("r2-x", ("r2-x", "r2-c", "r1-b", "r0-a"))}),
        "chain whole", "fork: r1-b of default has 2 children",
    ),
    "release on a parent that nobody knows": (
        lambda f: with_event(without(f, "r2-c"), topics.RELEASES, release(2, "r2-c", "r9-z")), "chain whole", "fork: r2-c of default follows r9-z, not r1-b",
    ),
    "a release published with two contents": (
        lambda f: with_event(f, topics.RELEASES, release(1, "r1-b", "r0-z")), "chain whole", "twice: release r1-b",
    ),
    "head of Redis behind": (
        lambda f: replace(f, heads={"default": Heads("r1-b", ("r1-b", "r0-a"))}), "heads agree", "Redis has 2 releases, the log 3",
    ),
    "head is not the end of its chain": (
        lambda f: replace(f, heads={"default": Heads("r1-b", ("r2-c", "r1-b", "r0-a"))}), "heads agree", "the head in Redis is r1-b, in the log r2-c",
    ),
    "no head": (lambda f: replace(f, heads={}), "heads agree", "Redis has no head of default"),
    "answered under no release": (
        lambda f: replace(f, answers=(replace(f.answers[0], release_id="r7-q"), *f.answers[1:])), "answered by the chain", "which is no release",
    ),
    "recorded under another release": (
        lambda f: changed(f, "rec-0", release_id="r1-b"), "answered by the chain", "answered under r0-a and recorded under r1-b",
    ),
    "dead letter": (lambda f: with_event(f, topics.FEEDBACK, dead()), "nothing given up", "dead letter of experience from reef.feedback.v1/3/7: no"),
    "failure without a reason": (lambda f: failed(f, NOW), "failures explained", "chat 502 upstream_failed"),
    "failure while only the broker is away": (
        lambda f: failed(fault(f, "tansu", at=NOW - 10, recovered_at=NOW - 5), NOW - 8), "failures explained", "without a reason",
    ),
    "failure after all had recovered": (
        lambda f: failed(fault(f, "engine", at=NOW - 10, recovered_at=NOW - 5), NOW), "failures explained", "without a reason",
    ),
    "failure before anything was broken": (
        lambda f: failed(fault(f, "engine", at=NOW - 10, recovered_at=NOW - 5), NOW - 12), "failures explained", "without a reason",
    ),
    "not recovered": (lambda f: fault(f, "engine", at=NOW - 9, recovered_at=None), "loop goes on", "fault 2 (kill engine): the broker is away"),
    "nothing learnt after it": (
        lambda f: fault(f, "trainer", at=NOW + 5, recovered_at=NOW + 7), "loop goes on", "no step after fault 2 (kill trainer)",
    ),
    "nothing learnt since it was over": (
        lambda f: fault(f, "trainer", at=NOW - 0.5, recovered_at=NOW + 7), "loop goes on", "no step after fault 2 (kill trainer)",
    ),
}  # fmt: skip


def test_a_sound_run_holds():
    stated = check(sound())
    assert {one.name: one.broken for one in stated if not one.held} == {}
    assert len(stated) == len(INVARIANTS)
    assert all(one.looked_at for one in stated), "nothing holds for want of anything to look at"


@pytest.mark.parametrize("planted", PLANTED)
def test_what_is_planted_is_found_and_named(planted):
    plant, name, words = PLANTED[planted]
    stated = {one.name: one for one in check(plant(sound()))}
    assert not all_held(list(stated.values()))
    assert any(words in line for line in stated[name].broken), stated[name]


def test_repeats_without_another_content_are_once_by_effect():
    facts = sound()
    again = tuple(replace(place, offset=place.offset + 50) for place in facts.log)
    assert all_held(check(replace(facts, log=(*facts.log, *again))))
    assert all_held(check(replace(facts, log=(*facts.log, again[0])))), (
        "the first place of a turn is the one that counts"
    )


def test_a_flawed_exchange_makes_its_report_one_untrainable_sample():
    bare = {"untrainable": "no_tokens", "tokens": (), "loss_mask": (), "logprobs": ()}
    facts = changed(sound(), "rec-4", completions=())
    held = resampled(facts, sample(3, record_ids=(*JOINED, *APART), **bare))
    assert all_held(check(held, (reports_applied_once,)))
    parted = resampled(facts, sample(3, record_ids=JOINED, **bare), apart())
    assert not all_held(check(parted, (reports_applied_once,)))


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
