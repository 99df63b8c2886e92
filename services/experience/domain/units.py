"""Turns and ended sessions as units of experience. An untrainable unit has its text alone."""

from collections.abc import Mapping, Sequence

from reefcommon import ids
from reefcommon.events import SessionEnded, TurnFollowed
from services.experience.domain.line import RunEnd, TurnEnd
from services.experience.domain.samples import Record, content, parted, turn_of, untrainable
from services.experience.domain.trajectory import Trajectory, assemble

SIDE = "side"


def is_side_call(tags: Mapping[str, str]) -> bool:
    """Return whether an exchange is a side call: a title, a judge, an episode."""
    return tags.get("turn-type", "").strip().lower() == SIDE


def turn_unit(record: Record, end: TurnEnd) -> TurnFollowed:
    """Make the unit of an exchange. Equal arguments make an equal unit."""
    reason = untrainable(record.event)
    trajectory = Trajectory() if reason else assemble([turn_of(record)])[0]
    return TurnFollowed(
        event_id=ids.unit_id("turn", (record.event.event_id,)),
        at=end.at,
        scenario=record.event.scenario,
        traceparent=record.event.traceparent,
        next_messages=end.next_messages,
        ended=end.ended,
        **content([record], trajectory, reason),
    )


def session_units(records: Sequence[Record], end: RunEnd) -> list[SessionEnded]:
    """Make the units of an ended run: its merged trajectory, or its parts.

    Exchanges that cannot be trained on are a part of their own, the last.
    """
    usable, flawed = parted(records)
    parts: list[tuple[list[Record], Trajectory, str | None]] = [
        ([usable[index] for index in trajectory.turns], trajectory, None)
        for trajectory in assemble([turn_of(record) for record in usable])
    ]
    if flawed:
        parts.append((flawed, Trajectory(), untrainable(flawed[0].event)))
    return [
        SessionEnded(
            event_id=ids.unit_id("session", tuple(r.event.event_id for r in part)),
            at=end.at,
            scenario=part[-1].event.scenario,
            traceparent=part[-1].event.traceparent,
            ended=end.ended,
            part=number,
            parts=len(parts),
            **content(part, trajectory, reason),
        )
        for number, (part, trajectory, reason) in enumerate(parts)
    ]
