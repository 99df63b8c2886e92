"""A sound run as values, and faults that are planted in it."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime

from reefcommon import events, topics
from tests.chaos.checker import check
from tests.chaos.collect import digest
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

Planted = dict[str, tuple[Callable[[Facts], Facts], str, str]]
"""By name: how the fault is planted, the invariant that it breaks, words of the evidence."""

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
        "event_id": receipt,
        "at": AT,
        "scenario": "default",
        "outcome": "ok",
        "release_id": "r0-a",
        "load_id": "i:0",
        "response": {"choices": [{"message": {"role": "assistant", "content": content}}]},
        **seen(*TOKENS.get(receipt, ((1, 2), (3, 4)))),
    }
    return events.InferenceRecorded(**{**values, **changes})


def sample(number: int, **changes) -> events.SampleReady:
    values = {
        "event_id": f"smp-{number}",
        "at": AT,
        "scenario": "default",
        "record_ids": (f"rec-{number}",),
        "report_id": f"rep-{number}",
        "release_id": "r0-a",
        "load_id": "i:0",
        "recorded_at": AT,
        "tokens": (1, 2, 3, 4),
        "prompt_length": 2,
        "loss_mask": (1, 1),
        "logprobs": (-1.0, -1.0),
    }
    return events.SampleReady(**{**values, **changes})


def joined(**changes) -> events.SampleReady:
    values = {
        "event_id": "smp-3",
        "record_ids": JOINED,
        "tokens": (1, 2, 3, 4, 9, 5, 6),
        "loss_mask": (1, 1, 0, 1, 1),
        "logprobs": (-1.0, -1.0, 0.0, -1.0, -1.0),
    }
    return sample(3, **{**values, **changes})


def apart(**changes) -> events.SampleReady:
    values = {
        "event_id": "smp-4",
        "record_ids": APART,
        "tokens": (1, 8, 7),
        "loss_mask": (1,),
        "logprobs": (-1.0,),
    }
    return sample(3, **{**values, **changes})


def resampled(facts: Facts, *samples: events.SampleReady) -> Facts:
    """With these samples of the conversation's report, in the log and in the store alike."""
    kept = [s for s in facts.samples if s.report_id != "rep-3"]
    bare = without(facts, "smp-3", "smp-4")
    log = (*bare.log, *logged(topics.SAMPLES, *samples))
    return replace(bare, log=log, samples=(*kept, *samples))


def step(job: str, sample_ids: tuple[str, ...], **changes) -> events.StepCompleted:
    values = {
        "event_id": job,
        "at": AT,
        "scenario": "default",
        "recipe": "sao",
        "step": 1,
        "base_release_id": "r0-a",
        "sample_ids": sample_ids,
        "duration_s": 1.0,
    }
    return events.StepCompleted(**{**values, **changes})


def release(sequence: int, release_id: str, parent_id: str | None) -> events.ReleasePublished:
    body = events.Release(
        release_id=release_id,
        scenario="default",
        sequence=sequence,
        parent_id=parent_id,
        kind="lora",
        content_id=f"lora-{sequence}",
        operation="training",
        load_id=f"i:{sequence}",
        created_at=AT,
    )
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
        event_id="dead-1",
        at=AT,
        scenario="default",
        group="experience",
        topic="reef.feedback.v1",
        partition=3,
        offset=7,
        value="",
        reason="no",
        attempts=6,
    )


def assert_found(plant: Callable[[Facts], Facts], name: str, words: str) -> None:
    """Assert that the invariant `name` is broken by a fault, with these words."""
    stated = {found.name: found for found in check(plant(sound()))}
    assert any(words in line for line in stated[name].broken), stated[name]
