"""Events as rows and rows as events: for each table its columns, each with how its value is read off."""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import from_json, to_json

from reefcommon.events import (
    BodyRef,
    Completion,
    Event,
    FeedbackReported,
    InferenceRecorded,
    ReleasePending,
    ReleasePublished,
    ReleaseRejected,
    SampleReady,
    SampleRefused,
    Sampling,
    ServingSynced,
    StepCompleted,
    Usage,
)
from services.experience.domain.parking import Parked
from services.experience.domain.samples import Record
from services.experience.domain.sessions import Assignment, Node, Session

Columns = Mapping[str, Callable[[Any], Any]]


def dump(value: object) -> bytes:
    """JSON of a body; empty for None. Integers of any size stay exact, which rules out orjson."""
    return b"" if value is None else to_json(value, inf_nan_mode="constants")


def load(text: str) -> Any:
    """What `dump` wrote."""
    return from_json(text) if text else None


def _meta(event: InferenceRecorded) -> bytes:
    return to_json([(c.index, c.finish_reason, c.weight_versions) for c in event.completions])


RECORDS: Columns = {
    "record_id": lambda r: r.event.event_id,
    "scenario": lambda r: r.event.scenario,
    "at": lambda r: r.event.at,
    "digest": lambda r: r.digest,
    "traceparent": lambda r: r.event.traceparent,
    "session_id": lambda r: r.place.session_id,
    "session_turn": lambda r: r.place.turn,
    "session_sequence": lambda r: r.place.sequence,
    "retry_of": lambda r: r.place.retry_of,
    "api": lambda r: r.event.api,
    "outcome": lambda r: r.event.outcome,
    "session_tag": lambda r: r.event.session_tag,
    "tags": lambda r: dump(r.event.tags),
    "release_id": lambda r: r.event.release_id,
    "load_id": lambda r: r.event.load_id,
    "model": lambda r: r.event.model,
    "engine": lambda r: r.event.engine,
    "request": lambda r: dump(r.event.request),
    "response": lambda r: dump(r.event.response),
    "body_ref": lambda r: dump(r.event.body_ref),
    "prompt_token_ids": lambda r: r.event.prompt_token_ids,
    "completions": lambda r: _meta(r.event),
    "completion_token_ids": lambda r: [c.token_ids for c in r.event.completions],
    "completion_logprobs": lambda r: [c.logprobs for c in r.event.completions],
    "usage": lambda r: dump(r.event.usage),
    "error": lambda r: r.event.error,
    "status": lambda r: r.event.status,
    "stream": lambda r: int(r.event.stream),
    "first_token_ms": lambda r: r.event.first_token_ms,
    "duration_ms": lambda r: r.event.duration_ms,
    "idempotency_digest": lambda r: r.event.idempotency_digest,
    "caller": lambda r: r.event.caller,
    "sampling": lambda r: dump(r.event.sampling),
    "loads": lambda r: dump(r.event.loads or None),
}


def record(row: Mapping[str, Any]) -> Record:
    """The record of a row, equal to the one that was inserted."""
    choices = zip(
        from_json(row["completions"]),
        row["completion_token_ids"],
        row["completion_logprobs"],
        strict=True,
    )
    event = InferenceRecorded(
        event_id=row["record_id"],
        **{
            name: row[name]
            for name in (
                "at",
                "scenario",
                "traceparent",
                "api",
                "outcome",
                "session_tag",
                "release_id",
                "load_id",
            )
        },
        **{
            name: row[name]
            for name in (
                "model",
                "engine",
                "error",
                "status",
                "first_token_ms",
                "duration_ms",
                "idempotency_digest",
                "caller",
            )
        },
        stream=bool(row["stream"]),
        tags=load(row["tags"]),
        request=load(row["request"]),
        response=load(row["response"]),
        body_ref=BodyRef.model_validate(load(row["body_ref"])) if row["body_ref"] else None,
        sampling=Sampling.model_validate(load(row["sampling"])) if row["sampling"] else None,
        loads=load(row["loads"]) or {},
        usage=Usage.model_validate(load(row["usage"])) if row["usage"] else None,
        prompt_token_ids=tuple(row["prompt_token_ids"]),
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
    """A record's place in its session."""
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
    """The report of a row."""
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
    """The sample of a row, equal to the one that was inserted."""
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
    """The session of a row. A row of before the trees has its latest turn as its one node."""
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
