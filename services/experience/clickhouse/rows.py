"""Events as rows and rows as events: each table's columns, with the value of each."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from pydantic_core import from_json, to_json

from reefcommon.events import (
    Completion,
    Event,
    FeedbackReported,
    InferenceRecorded,
    ReleasePending,
    ReleasePublished,
    ReleaseRejected,
    SampleReady,
    SampleRefused,
    ServingSynced,
    StepCompleted,
)
from services.experience.domain.parking import Parked
from services.experience.domain.samples import Record
from services.experience.domain.sessions import Assignment, Node, Session

Columns = Mapping[str, Callable[[Any], Any]]


def dump(value: object) -> bytes:
    """Encode a body as JSON; empty for None."""
    # Not orjson: integers of any size stay exact.
    return b"" if value is None else to_json(value, inf_nan_mode="constants")


def load(text: str) -> Any:
    return from_json(text) if text else None


def _field(name: str, record: Record) -> Any:
    return getattr(record.event, name)


def _field_as_json(name: str, record: Record) -> bytes:
    return dump(getattr(record.event, name))


def _meta(event: InferenceRecorded) -> bytes:
    return to_json([(c.index, c.finish_reason, c.weight_versions) for c in event.completions])


# Columns that hold the event's field of the same name, as it is or as JSON.
_RECORD_PLAIN = (
    "scenario", "at", "traceparent", "api", "outcome", "session_tag", "release_id", "load_id",
    "model", "engine", "error", "status", "first_token_ms", "duration_ms", "idempotency_digest",
    "caller", "prompt_token_ids",
)  # fmt: skip
_RECORD_JSON = ("tags", "request", "response", "body_ref", "usage", "sampling")
RECORDS: Columns = {
    "record_id": lambda r: r.event.event_id,
    "digest": lambda r: r.digest,
    "session_id": lambda r: r.place.session_id,
    "session_turn": lambda r: r.place.turn,
    "session_sequence": lambda r: r.place.sequence,
    "retry_of": lambda r: r.place.retry_of,
    **{name: partial(_field, name) for name in _RECORD_PLAIN},
    **{name: partial(_field_as_json, name) for name in _RECORD_JSON},
    # Empty in rows of before the loads by kind, so that a replay of an old log is equal.
    "loads": lambda r: dump(r.event.loads or None),
    "completions": lambda r: _meta(r.event),
    "completion_token_ids": lambda r: [c.token_ids for c in r.event.completions],
    "completion_logprobs": lambda r: [c.logprobs for c in r.event.completions],
    "stream": lambda r: int(r.event.stream),
}


def record(row: Mapping[str, Any]) -> Record:
    """Return the record of a row, equal to its origin."""
    choices = zip(
        from_json(row["completions"]),
        row["completion_token_ids"],
        row["completion_logprobs"],
        strict=True,
    )
    texts = {name: load(row[name]) for name in _RECORD_JSON}
    event = InferenceRecorded(
        event_id=row["record_id"],
        **{name: row[name] for name in _RECORD_PLAIN},
        **{name: text for name, text in texts.items() if text is not None},
        loads=load(row["loads"]) or {},
        stream=bool(row["stream"]),
        completions=tuple(
            Completion(
                index=index,
                finish_reason=why,
                weight_versions=spans,
                token_ids=tuple(tokens),
                logprobs=tuple(logprobs),
            )
            for (index, why, spans), tokens, logprobs in choices
        ),
    )
    return Record(event, row["digest"], assignment(row))


def assignment(row: Mapping[str, Any]) -> Assignment:
    return Assignment(
        row["session_id"], row["session_turn"], row["session_sequence"], row["retry_of"]
    )


REPORTS: Columns = {
    "report_id": lambda r: r.parked.report.event_id,
    "scenario": lambda r: r.parked.report.scenario,
    "at": lambda r: r.parked.report.at,
    "digest": lambda r: r.parked.report.content_digest,
    "traceparent": lambda r: r.parked.report.traceparent,
    "references": lambda r: r.parked.report.references,
    "score": lambda r: r.parked.report.score,
    "feedback": lambda r: dump(r.parked.report.feedback),
    "metadata": lambda r: dump(r.parked.report.metadata),
    "state": lambda r: r.state,
    "sample_id": lambda r: r.sample_id,
    "parked_at": lambda r: r.parked.parked_at,
    "log_partition": lambda r: r.parked.partition,
    "log_offset": lambda r: r.parked.offset,
    "log_key": lambda r: (r.parked.key or b"").decode(errors="replace"),
    "version": lambda r: r.version,
}


def parked(row: Mapping[str, Any]) -> Parked:
    report = FeedbackReported(
        event_id=row["report_id"],
        **{name: row[name] for name in ("at", "scenario", "traceparent", "score")},
        references=tuple(row["references"]),
        feedback=load(row["feedback"]),
        metadata=load(row["metadata"]),
        content_digest=row["digest"],
    )
    return Parked(
        report,
        row["parked_at"],
        row["log_partition"],
        row["log_offset"],
        row["log_key"].encode() or None,
    )


_SAMPLE_PLAIN = (
    "scenario",
    "at",
    "recorded_at",
    "traceparent",
    "record_ids",
    "report_id",
    "session_id",
    "release_id",
    "load_id",
    "score",
)
_SAMPLE_TOKENS = ("tokens", "prompt_length", "loss_mask", "logprobs", "temperature", "untrainable")
_SAMPLE_JSON = ("tags", "feedback", "metadata", "messages", "tools")


def _attribute(name: str) -> Callable[[Any], Any]:
    return lambda event: getattr(event, name)


def _json(name: str) -> Callable[[Any], Any]:
    return lambda event: dump(getattr(event, name))


SAMPLES: Columns = {
    "sample_id": lambda s: s.event_id,
    **{name: _attribute(name) for name in _SAMPLE_PLAIN + _SAMPLE_TOKENS},
    **{name: _json(name) for name in _SAMPLE_JSON},
    "sampling": lambda s: dump(s.sampling or None),
    "loads": lambda s: dump(s.loads or None),
}


def sample(row: Mapping[str, Any]) -> SampleReady:
    """Return the sample of a row, equal to its origin."""
    plain = {name: row[name] for name in _SAMPLE_PLAIN + _SAMPLE_TOKENS}
    texts = {name: load(row[name]) for name in _SAMPLE_JSON}
    newer = {"sampling": load(row["sampling"]) or (), "loads": load(row["loads"]) or {}}
    return SampleReady.model_validate({"event_id": row["sample_id"], **plain, **texts, **newer})


_SESSION = (
    "scenario",
    "session_id",
    "caller",
    "turns",
    "sequence",
    "first_at",
    "last_at",
    "turn_record_id",
)
SESSIONS: Columns = {
    "tagged": lambda s: int(s.tagged),
    "nodes": lambda s: to_json([(n.record_id, n.turn, n.request, n.tails) for n in s.nodes]),
    "request_hash": lambda s: s.nodes[-1].request,
    **{name: _attribute(name) for name in (*_SESSION, "tail_hashes", "request_hashes")},
}


def session(row: Mapping[str, Any]) -> Session:
    # A row of before the trees has its latest turn as its only node.
    last = (row["turn_record_id"], row["turns"] - 1, row["request_hash"], row["tail_hashes"])
    return Session(
        **{name: row[name] for name in _SESSION},
        tagged=bool(row["tagged"]),
        nodes=tuple(
            Node(record_id, turn, request, tuple(tails))
            for record_id, turn, request, tails in load(row["nodes"]) or (last,)
        ),
    )


_STEP = (
    "scenario",
    "at",
    "recipe",
    "step",
    "base_release_id",
    "sample_ids",
    "duration_s",
    "candidate_id",
)
STEPS: Columns = {
    "job_id": _attribute("event_id"),
    **{name: _attribute(name) for name in _STEP},
    "metrics": _json("metrics"),
}
REFUSALS: Columns = {
    "refusal_id": _attribute("event_id"),
    **{
        name: _attribute(name)
        for name in ("scenario", "at", "recipe", "sample_id", "reason", "lag")
    },
}
SERVINGS: Columns = {
    name: _attribute(name)
    for name in (
        "event_id",
        "scenario",
        "at",
        "release_id",
        "load_id",
        "node",
        "adapter",
        "duration_ms",
    )
}


def _release(name: str, default: Any) -> Callable[[Any], Any]:
    return lambda event: (
        default if isinstance(event, ReleaseRejected) else getattr(event.release, name)
    )


def _release_state(event: Event) -> str:
    if isinstance(event, ReleaseRejected):
        return event.outcome
    return "pending" if isinstance(event, ReleasePending) else "published"


RELEASES: Columns = {
    "event_id": _attribute("event_id"),
    "scenario": _attribute("scenario"),
    "at": _attribute("at"),
    "state": _release_state,
    "release_id": _release("release_id", None),
    "sequence": _release("sequence", None),
    "load_id": _release("load_id", None),
    "kind": _release("kind", ""),
    "operation": _release("operation", ""),
    "candidate_id": lambda event: (
        event.candidate_id if isinstance(event, ReleaseRejected) else event.release.candidate_id
    ),
    "body": dump,
}

OUTCOMES: Mapping[type[Event], tuple[str, Columns]] = {
    StepCompleted: ("steps", STEPS),
    SampleRefused: ("refusals", REFUSALS),
    ReleasePublished: ("releases", RELEASES),
    ReleasePending: ("releases", RELEASES),
    ReleaseRejected: ("releases", RELEASES),
    ServingSynced: ("servings", SERVINGS),
}
