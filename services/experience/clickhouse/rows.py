"""Events as rows and rows as events."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any

from pydantic_core import from_json, to_json

from reefcommon import events
from reefcommon.events import Event, ReleasePending, ReleaseRejected
from services.experience.domain.line import Mark
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


def _plain(names: str, of: str = "") -> Columns:
    return {name: attrgetter(of + name) for name in names.split()}


def _json(names: str, of: str = "") -> Columns:
    def dumped(read: Callable[[Any], Any]) -> Callable[[Any], bytes]:
        return lambda item: dump(read(item))

    return {name: dumped(read) for name, read in _plain(names, of).items()}


def _meta(record: Record) -> bytes:
    completions = record.event.completions
    return to_json([(c.index, c.finish_reason, c.weight_versions) for c in completions])


_RECORD_PLAIN = (
    "scenario at traceparent api outcome session_tag release_id load_id model engine error status "
    "first_token_ms duration_ms idempotency_digest caller prompt_token_ids dialect"
)
_RECORD_JSON = "tags request response body_ref usage sampling harness"
RECORDS: Columns = {
    "record_id": attrgetter("event.event_id"),
    "digest": attrgetter("digest"),
    "session_id": attrgetter("place.session_id"),
    "session_turn": attrgetter("place.turn"),
    "session_sequence": attrgetter("place.sequence"),
    "retry_of": attrgetter("place.retry_of"),
    **_plain(_RECORD_PLAIN, of="event."),
    **_json(_RECORD_JSON, of="event."),
    # Empty in rows of before the loads by kind, so that a replay of an old log is equal.
    "loads": lambda r: dump(r.event.loads or None),
    "completions": _meta,
    "completion_token_ids": lambda r: [c.token_ids for c in r.event.completions],
    "completion_logprobs": lambda r: [c.logprobs for c in r.event.completions],
    "stream": lambda r: int(r.event.stream),
    "session_end": lambda r: int(r.event.session_end),
}


def record(row: Mapping[str, Any]) -> Record:
    """Return the record of a row, equal to its origin."""
    sampled = row["completion_token_ids"], row["completion_logprobs"]
    texts = {name: load(row[name]) for name in _RECORD_JSON.split()}
    event = events.InferenceRecorded(
        event_id=row["record_id"],
        **{name: row[name] for name in _RECORD_PLAIN.split()},
        **{name: text for name, text in texts.items() if text is not None},
        loads=load(row["loads"]) or {},
        stream=bool(row["stream"]),
        session_end=bool(row["session_end"]),
        completions=tuple(
            events.Completion(
                index=index,
                finish_reason=why,
                weight_versions=spans,
                token_ids=tuple(ids),
                logprobs=tuple(scored),
            )
            for (index, why, spans), ids, scored in zip(
                from_json(row["completions"]), *sampled, strict=True
            )
        ),
    )
    return Record(event, row["digest"], assignment(row))


def assignment(row: Mapping[str, Any]) -> Assignment:
    names = ("session_id", "session_turn", "session_sequence", "retry_of")
    return Assignment(*(row[name] for name in names))


REPORTS: Columns = {
    "report_id": attrgetter("parked.report.event_id"),
    "digest": attrgetter("parked.report.content_digest"),
    **_plain("scenario at traceparent references score", of="parked.report."),
    **_json("feedback metadata", of="parked.report."),
    **_plain("state sample_id version"),
    "parked_at": attrgetter("parked.parked_at"),
    "log_partition": attrgetter("parked.partition"),
    "log_offset": attrgetter("parked.offset"),
    "log_key": lambda r: (r.parked.key or b"").decode(errors="replace"),
}


def parked(row: Mapping[str, Any]) -> Parked:
    report = events.FeedbackReported(
        event_id=row["report_id"],
        **{name: row[name] for name in ("at", "scenario", "traceparent", "score")},
        references=tuple(row["references"]),
        feedback=load(row["feedback"]),
        metadata=load(row["metadata"]),
        content_digest=row["digest"],
    )
    key = row["log_key"].encode() or None
    return Parked(report, row["parked_at"], row["log_partition"], row["log_offset"], key)


SAMPLES: Columns = {
    "sample_id": attrgetter("event_id"),
    **_plain(
        "scenario at recorded_at traceparent record_ids report_id session_id release_id load_id "
        "score tokens prompt_length loss_mask logprobs temperature untrainable"
    ),
    **_json("tags feedback metadata messages tools"),
    "sampling": lambda s: dump(s.sampling or None),
    "loads": lambda s: dump(s.loads or None),
}

_UNIT = (
    "scenario at recorded_at traceparent record_ids session_id ended release_id load_id tokens "
    "prompt_length loss_mask logprobs temperature untrainable"
)
_UNIT_JSON = "tags loads metadata sampling messages tools"
UNITS: Columns = {
    "unit_id": attrgetter("event_id"),
    "kind": events.unit_kind,
    **_plain(_UNIT),
    **_json(_UNIT_JSON),
    "next_messages": lambda u: dump(getattr(u, "next_messages", ())),
    "part": lambda u: getattr(u, "part", 0),
    "parts": lambda u: getattr(u, "parts", 1),
}

PERIODS: Columns = _plain("scenario kind since until")

# A zombie of a process must not bring an earlier state back.
_VERSIONS = {"open": 0, "passed": 1}
_MARK = "record_id sequence run request tails at state"


def _of_mark(name: str) -> Callable[[Any], Any]:
    read = attrgetter(name)
    return lambda row: read(row[1])


TURNS: Columns = {
    "scenario": lambda row: row[0][0],
    "session_id": lambda row: row[0][1],
    **{name: _of_mark(name) for name in _MARK.split()},
    "log_partition": lambda row: row[1].partition,
    "version": lambda row: _VERSIONS.get(row[1].state, 2),
}


def mark(row: Mapping[str, Any]) -> Mark:
    fields = {name: row[name] for name in _MARK.split()}
    return Mark(**{**fields, "tails": tuple(row["tails"])}, partition=row["log_partition"])


_SESSION = "scenario session_id caller turns sequence first_at last_at turn_record_id"
SESSIONS: Columns = {
    "tagged": lambda s: int(s.tagged),
    "nodes": lambda s: to_json([(n.record_id, n.turn, n.request, n.tails) for n in s.nodes]),
    "request_hash": lambda s: s.nodes[-1].request,
    **_plain(f"{_SESSION} tail_hashes request_hashes"),
}


def session(row: Mapping[str, Any]) -> Session:
    # A row of before the trees has its latest turn as its only node.
    last = (row["turn_record_id"], row["turns"] - 1, row["request_hash"], row["tail_hashes"])
    return Session(
        **{name: row[name] for name in _SESSION.split()},
        tagged=bool(row["tagged"]),
        nodes=tuple(
            Node(record_id, turn, request, tuple(tails))
            for record_id, turn, request, tails in load(row["nodes"]) or (last,)
        ),
    )


STEPS: Columns = {
    "job_id": attrgetter("event_id"),
    **_plain("scenario at recipe step base_release_id sample_ids duration_s candidate_id"),
    **_json("metrics"),
}
REFUSALS: Columns = {
    "refusal_id": attrgetter("event_id"),
    **_plain("scenario at recipe sample_id reason lag"),
}
SERVINGS: Columns = _plain("event_id scenario at release_id load_id node adapter duration_ms")


SIGNALS: Columns = {
    "signal_id": attrgetter("event_id"),
    **_plain("scenario at recipe unit_id calls tokens"),
    "abstained": lambda s: int(s.signal is None),
    "score": lambda s: s.signal and s.signal.score,
    "weight": lambda s: s.signal and s.signal.weight,
    "words": lambda s: s.signal.words if s.signal else "",
    "teacher": lambda s: dump(s.signal and s.signal.teacher),
    "labels": lambda s: dump(s.signal and s.signal.labels),
    "logprobs": lambda s: s.signal.logprobs if s.signal else (),
}


def _release(name: str, rejected: Any) -> Callable[[Any], Any]:
    read = attrgetter(f"release.{name}")
    return lambda event: rejected if isinstance(event, ReleaseRejected) else read(event)


def _release_state(event: Event) -> str:
    if isinstance(event, ReleaseRejected):
        return event.outcome
    return "pending" if isinstance(event, ReleasePending) else "published"


RELEASES: Columns = {
    **_plain("event_id scenario at"),
    "state": _release_state,
    **{name: _release(name, None) for name in ("release_id", "sequence", "load_id")},
    **{name: _release(name, "") for name in ("kind", "operation")},
    "candidate_id": lambda e: (e if isinstance(e, ReleaseRejected) else e.release).candidate_id,
    "body": dump,
}

OUTCOMES: Mapping[type[Event], tuple[str, Columns]] = {
    events.StepCompleted: ("steps", STEPS),
    events.SampleRefused: ("refusals", REFUSALS),
    events.ReleasePublished: ("releases", RELEASES),
    ReleasePending: ("releases", RELEASES),
    ReleaseRejected: ("releases", RELEASES),
    events.ServingSynced: ("servings", SERVINGS),
    events.SignalComputed: ("signals", SIGNALS),
}
