"""Samples out of reports and records. An untrainable sample says why, and keeps its text."""

# Why a sample is untrainable:
#     aborted, failed, upstream_incomplete   the outcome of an exchange (a node may abort it, too)
#     not_text                               the model saw pictures or sound, which tokens lack
#     several_choices                        several answers were sampled: the report names none
#     no_tokens                              the upstream gave no token ids
#     length_mismatch                        token ids and log-probabilities differ in number
#     not_finite                             a log-probability is not a number
#     mixed_versions                         the weights changed while an answer was sampled
#
# Records that the tokens do not join (branches, several sessions, a template that strips earlier
# answers, several temperatures or callers) make several samples. No sampled token is in two.

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from reefcommon import ids
from reefcommon.conversation import mappings
from reefcommon.events import FeedbackReported, InferenceRecorded, SampleReady
from services.experience.domain import conversation
from services.experience.domain.sessions import Assignment
from services.experience.domain.trajectory import Trajectory, Turn, assemble


@dataclass(frozen=True, slots=True)
class Record:
    """An exchange with its place in a session."""

    event: InferenceRecorded
    digest: str
    place: Assignment

    @property
    def request(self) -> dict[str, Any]:
        """The request's body; empty if it was not kept."""
        return self.event.request or {}

    @property
    def asked(self) -> tuple[str, str]:
        # The same for all records that repeat a request of their session.
        return self.place.session_id, self.place.retry_of or self.event.event_id


def wrong_references(references: Sequence[str]) -> str | None:
    """Return why a report with these references can never be joined, or None."""
    if not references or len(set(references)) < len(references):
        return "references must be non-empty and unique"
    own = [reference for reference in references if ids.shard_in(reference) is not None]
    reports = [reference for reference in own if reference.startswith("rep-")]
    if reports:
        return f"references must be receipts of exchanges, not of reports: {', '.join(reports)}"
    return None


def make_samples(report: FeedbackReported, records: Sequence[Record]) -> list[SampleReady]:
    """Make the samples of a report. The order of `records` does not matter."""
    usable, flawed = parted(records)
    if flawed:
        reason = untrainable(flawed[0].event)
        return [_sample(report, in_order(records), Trajectory(), reason)]
    kept = _without_abandoned(usable)
    return [
        _sample(report, [kept[index] for index in trajectory.turns], trajectory, None)
        for trajectory in assemble([turn_of(record) for record in kept])
    ]


def parted(records: Sequence[Record]) -> tuple[list[Record], list[Record]]:
    """Return the records that can be trained on, and those that cannot, in order.

    A failed answer whose request was repeated with success is in neither: it is of no use.
    """
    ordered = in_order(records)
    usable = [record for record in ordered if untrainable(record.event) is None]
    asked = {record.asked for record in usable}
    return usable, [one for one in ordered if one not in usable and one.asked not in asked]


def untrainable(event: InferenceRecorded) -> str | None:
    """Return why an exchange cannot be trained on, or None."""
    if event.outcome != "ok":
        return event.outcome
    if not conversation.is_text(event.request or {}):
        return "not_text"
    if len(event.completions) > 1:
        return "several_choices"
    sampled = event.completions[0] if event.completions else None
    if sampled is not None and sampled.finish_reason == "abort":
        return "aborted"
    if sampled is None or not sampled.token_ids or not event.prompt_token_ids:
        return "no_tokens"
    if len(sampled.token_ids) != len(sampled.logprobs):
        return "length_mismatch"
    if not all(map(math.isfinite, sampled.logprobs)):
        return "not_finite"
    return "mixed_versions" if len({span.version for span in sampled.weight_versions}) > 1 else None


def in_order(records: Sequence[Record]) -> list[Record]:
    """Sort records by the beginning of their session, then by their place in it."""
    began: dict[str, datetime] = {}
    for record in records:
        session, at = record.place.session_id, record.event.at
        began[session] = min(began.get(session, at), at)

    def place(record: Record) -> tuple[Any, ...]:
        session = record.place.session_id
        return began[session], session, record.place.sequence, record.event.event_id

    return sorted(records, key=place)


def _without_abandoned(records: Sequence[Record]) -> list[Record]:
    # If a client repeated a request and went on from the second answer, the score is not about the
    # first answer. Answers that no turn continues are rollouts: all are kept.
    turns = [turn_of(record) for record in records]
    went_on = [any(other.continues(turn) for other in turns) for turn in turns]
    continued = {r.event.event_id for r, on in zip(records, went_on, strict=True) if on}
    answered = {record.asked for record in records if record.event.event_id in continued}
    return [r for r in records if r.asked not in answered or r.event.event_id in continued]


def _sample(
    report: FeedbackReported, records: Sequence[Record], trajectory: Trajectory, reason: str | None
) -> SampleReady:
    fields = content(records, trajectory, reason)
    return SampleReady(
        event_id=ids.sample_id(report.event_id, fields["record_ids"]),
        **{name: getattr(report, name) for name in ("at", "scenario", "traceparent")},
        report_id=report.event_id,
        score=report.score,
        feedback=report.feedback,
        **{**fields, "metadata": {**report.metadata, **fields["metadata"]}},
    )


def content(
    records: Sequence[Record], trajectory: Trajectory, reason: str | None
) -> dict[str, Any]:
    """Return the fields of a unit that follow from its records alone, in their order."""
    events = [record.event for record in records]
    sessions = {record.place.session_id for record in records}
    sampling = tuple(conversation.sampling(event) for event in events)
    oldest, last = min(events, key=lambda event: _place(event.load_id)), records[-1]
    answers = conversation.answers(last.event.response, last.event.api)
    loads = tuple(dict.fromkeys(event.load_id for event in events))
    return {
        "record_ids": tuple(event.event_id for event in events),
        "session_id": last.place.session_id if len(sessions) == 1 else None,
        "tags": {key: value for event in events for key, value in event.tags.items()},
        # The oldest load counts for all turns: its staleness is the unit's.
        **{name: getattr(oldest, name) for name in ("release_id", "load_id")},
        "loads": _with_oldest_harness(oldest.loads, events),
        "metadata": {
            **({} if len(loads) == 1 else {"reef_load_ids": list(loads)}),
            **_template_options(last.request),
        },
        "temperature": sampling[-1].temperature,
        "sampling": sampling,
        "untrainable": reason,
        "messages": (*conversation.request_messages(last.request, last.event.api), *answers[:1]),
        "tools": tuple(map(dict, mappings(last.request.get("tools")))),
        "recorded_at": last.event.at,
        "tokens": trajectory.tokens,
        "prompt_length": trajectory.prompt_length,
        "loss_mask": trajectory.mask,
        "logprobs": trajectory.logprobs,
    }


def _template_options(request: Mapping[str, Any]) -> dict[str, Any]:
    # A teacher's prompt is rendered with the same: a thought that is switched off stays off.
    options = request.get("chat_template_kwargs")
    return {"reef_template_options": options} if options and isinstance(options, Mapping) else {}


def turn_of(record: Record) -> Turn:
    """Return a trainable exchange as the engine saw it."""
    event = record.event
    answer = event.completions[0]
    kind = (event.caller, conversation.sampling(event).temperature)
    return Turn(event.prompt_token_ids, answer.token_ids, answer.logprobs, kind)


def _with_oldest_harness(
    loads: dict[str, str], events: Sequence[InferenceRecorded]
) -> dict[str, str]:
    found = min((event.loads.get("harness", "") for event in events), key=_place)
    return {**loads, "harness": found} if loads and found else loads


def _place(load_id: str | None) -> tuple[int, str]:
    # Sequences are compared within an incarnation. A missing load counts as the oldest: else the
    # staleness of the turn beside it would count for both.
    try:
        load = ids.LoadId.parse(load_id or "")
    except ValueError:
        return -1, ""
    return load.sequence, load.incarnation
