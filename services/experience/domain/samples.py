"""One report and the records that it is about make one sample. What cannot be trained on says why, and keeps its text.

Why a sample is untrainable:
    aborted, failed, upstream_incomplete   what became of one of its exchanges
    several_choices                        the engine sampled more than one answer: nobody knows which one was meant
    no_tokens                              the upstream gave no token ids
    length_mismatch                        token ids and log-probabilities differ in number
    not_finite                             a log-probability is not a number
    mixed_versions                         the weights changed while an answer was sampled
    mixed_temperatures                     turns of one session were sampled at several temperatures
    several_sessions                       the records are not turns of one session
    forked                                 a later prompt does not go on from the earlier turns
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from reefcommon import ids
from reefcommon.events import FeedbackReported, InferenceRecorded, SampleReady
from services.experience.domain import conversation
from services.experience.domain.sessions import Assignment
from services.experience.domain.trajectory import Trajectory, Turn, assemble


@dataclass(frozen=True, slots=True)
class Record:
    """A record with its place in a session, and its bodies (None: the claim check could not be resolved, or there is none)."""

    event: InferenceRecorded
    digest: str
    place: Assignment

    @property
    def request(self) -> dict[str, Any]:
        """The request's body; empty where it was not kept."""
        return self.event.request or {}


def wrong_references(references: Sequence[str]) -> str | None:
    """Why a report with these references can never be joined; None: it may be."""
    if not references or len(set(references)) < len(references):
        return "references must be non-empty and unique"
    reports = [
        reference
        for reference in references
        if reference.startswith("rep-") and ids.shard_in(reference) is not None
    ]
    return (
        f"references must be receipts of exchanges, not of reports: {', '.join(reports)}"
        if reports
        else None
    )


def make_sample(
    report: FeedbackReported, records: Sequence[Record], *, realign_tokens: int
) -> SampleReady:
    """The sample of a report. `records` are those that it refers to, in any order; the same inputs always give the same sample."""
    in_time = sorted(records, key=lambda record: (record.event.at, record.event.event_id))
    turns = _without_retries(in_time)
    reason = untrainable(turns)
    trajectory = None
    if reason is None:
        trajectory = assemble([_turn(record) for record in turns], realign_tokens=realign_tokens)
        reason = "forked" if trajectory is None else None
    last = in_time[-1]
    record_ids = tuple(record.event.event_id for record in in_time)
    oldest = min(turns, key=_age)
    return SampleReady(
        event_id=ids.sample_id(report.event_id, record_ids),
        at=report.at,
        scenario=report.scenario,
        traceparent=report.traceparent,
        record_ids=record_ids,
        report_id=report.event_id,
        session_id=last.place.session_id if len(_sessions(in_time)) == 1 else None,
        tags={key: value for record in in_time for key, value in record.event.tags.items()},
        release_id=oldest.event.release_id,
        load_id=oldest.event.load_id,
        score=report.score,
        feedback=report.feedback,
        metadata=_metadata(report, turns),
        temperature=conversation.temperature(last.request),
        untrainable=reason,
        messages=conversation.conversation(last.event, last.request, last.event.response),
        tools=conversation.tools(last.request),
        recorded_at=last.event.at,
        **_tokens(trajectory),
    )


def untrainable(records: Sequence[Record]) -> str | None:
    """Why these records, in order of time, cannot be trained on; None: they can, as far as each one shows."""
    for record in records:
        if (reason := _flaw(record.event)) is not None:
            return reason
    if len(_sessions(records)) > 1:
        return "several_sessions"
    if len({conversation.temperature(record.request) for record in records}) > 1:
        return "mixed_temperatures"
    return None


def _flaw(event: InferenceRecorded) -> str | None:
    if event.outcome != "ok":
        return event.outcome
    if len(event.completions) > 1:
        return "several_choices"
    sampled = event.completions[0] if event.completions else None
    if sampled is None or not sampled.token_ids or not event.prompt_token_ids:
        return "no_tokens"
    if len(sampled.token_ids) != len(sampled.logprobs):
        return "length_mismatch"
    if not all(map(math.isfinite, sampled.logprobs)):
        return "not_finite"
    return "mixed_versions" if len({span.version for span in sampled.weight_versions}) > 1 else None


def _without_retries(records: Sequence[Record]) -> list[Record]:
    """One record a turn: the one that the next turn's prompt goes on from, else the first receipt."""
    kept: list[list[Record]] = []
    for record in records:
        same_turn = (
            kept
            and kept[-1][-1].place.session_id == record.place.session_id
            and kept[-1][-1].place.turn == record.place.turn
        )
        if same_turn:
            kept[-1].append(record)
        else:
            kept.append([record])
    following: Iterable[list[Record] | None] = (*kept[1:], None)
    return [
        _chosen(group, after[0] if after else None)
        for group, after in zip(kept, following, strict=True)
    ]


def _chosen(group: Sequence[Record], after: Record | None) -> Record:
    if after is not None:
        for record in group:
            seen = (*record.event.prompt_token_ids, *_turn(record).sampled)
            if after.event.prompt_token_ids[: len(seen)] == seen:
                return record
    return group[0]


def _turn(record: Record) -> Turn:
    sampled = record.event.completions[0] if record.event.completions else None
    return Turn(
        record.event.prompt_token_ids,
        sampled.token_ids if sampled else (),
        sampled.logprobs if sampled else (),
    )


def _sessions(records: Sequence[Record]) -> set[str]:
    return {record.place.session_id for record in records}


def _age(record: Record) -> tuple[int, str]:
    """Orders loads from the oldest on, within one incarnation; what names no load counts as the oldest."""
    try:
        load = ids.LoadId.parse(record.event.load_id or "")
    except ValueError:
        return -1, ""
    return load.sequence, load.incarnation


def _metadata(report: FeedbackReported, turns: Sequence[Record]) -> dict[str, Any]:
    loads = tuple(dict.fromkeys(record.event.load_id for record in turns))
    return report.metadata if len(loads) == 1 else {**report.metadata, "reef_load_ids": list(loads)}


def _tokens(trajectory: Trajectory | None) -> dict[str, Any]:
    if trajectory is None:
        return {}
    return {
        "tokens": trajectory.tokens,
        "prompt_length": trajectory.prompt_length,
        "loss_mask": trajectory.mask,
        "logprobs": trajectory.logprobs,
    }
