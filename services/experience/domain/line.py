"""The main line of a session: which request follows which answer, and when the session ended."""

#     open ---- the session's next request -----> followed
#       '------ the session ends ---------------> closed | idle
#     passed    its request was repeated, and the session went on from the other answer;
#               at the end: abandoned, which makes no unit
#     side      a side call: neither a unit nor a next request
#
# A run is the part of a session between two ends. A line is a function of the session's exchanges
# in the order of their sequence, and of the times of their events: a second reading of the log
# gives the same line.

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from reefcommon.conversation import role_of
from services.experience.domain.conversation import Fingerprint

State = Literal["open", "passed", "followed", "closed", "idle", "abandoned", "side"]
Messages = tuple[dict[str, Any], ...]

MAX_RUN = 2048
"""Exchanges of a run at most; the next exchange begins another run. It bounds the memory."""
_NEVER = datetime.min.replace(tzinfo=UTC)
CURRENT: tuple[State, ...] = ("open", "passed", "followed", "side")
"""States of exchanges of a run that goes on."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of an exchange. `run` is the sequence of the run's first exchange; 0: side call."""

    record_id: str
    sequence: int
    run: int
    request: str
    tails: tuple[str, ...]
    at: datetime
    partition: int
    state: State


@dataclass(frozen=True, slots=True)
class Incoming:
    """An exchange that a line may not know. `messages`: those of its request."""

    record_id: str
    sequence: int
    prints: Fingerprint
    messages: Messages
    began_at: datetime
    at: datetime
    partition: int = 0
    tagged: bool = False
    side: bool = False
    last: bool = False


@dataclass(frozen=True, slots=True)
class TurnEnd:
    """An answer was followed by the session's next request, or the session ended with it."""

    record_id: str
    ended: Literal["followed", "closed", "idle"]
    at: datetime
    next_messages: Messages = ()


@dataclass(frozen=True, slots=True)
class RunEnd:
    """A run ended. `record_ids`: its exchanges in order, without those that were abandoned."""

    record_ids: tuple[str, ...]
    ended: Literal["closed", "idle"]
    at: datetime


@dataclass(slots=True)
class Changes:
    """New states by record id, and the ends that they mean."""

    marks: dict[str, Mark] = field(default_factory=dict)
    turns: list[TurnEnd] = field(default_factory=list)
    runs: list[RunEnd] = field(default_factory=list)


class Line:
    """The current run of a session. `sequence`: of the latest exchange that it knows."""

    def __init__(self, marks: Iterable[Mark] = ()) -> None:
        """`marks`: of a session, at least the latest and those in a state of CURRENT."""
        known = sorted(marks, key=lambda mark: mark.sequence)
        self.sequence = known[-1].sequence if known else 0
        self._begin()
        # A run that has not ended has an open exchange: its latest.
        run = max((mark.run for mark in known if mark.state == "open"), default=0)
        for mark in known:
            if run and mark.run == run:
                self._add(mark)

    def copy(self) -> "Line":
        line = Line(self._marks.values())
        line.sequence = self.sequence
        return line

    @property
    def last(self) -> Mark | None:
        """The latest exchange of a run that goes on."""
        return next(reversed(self._marks.values()), None)

    def take(self, incoming: Incoming, idle: timedelta, changes: Changes) -> None:
        """Take the session's next exchange. An exchange of an earlier sequence changes nothing."""
        if incoming.sequence <= self.sequence:
            return
        # After a gap, the request that this exchange follows in time is not known.
        gapless = incoming.sequence == self.sequence + 1
        self.sequence = incoming.sequence
        self.expire(incoming.at, idle, changes)
        if incoming.side:
            changes.marks[incoming.record_id] = _mark(incoming, 0, "side")
        else:
            self._take_main(incoming, gapless, changes)
        if incoming.last:
            self._end("closed", incoming.at, changes)

    def expire(self, until: datetime, idle: timedelta, changes: Changes) -> None:
        """End the run if it has been idle since before `until` - `idle`."""
        if self._marks and self.last_at + idle < until:
            self._end("idle", self.last_at + idle, changes)

    def _take_main(self, incoming: Incoming, gapless: bool, changes: Changes) -> None:
        followed, said = self._followed(incoming, gapless)
        if followed is not None:
            self._set(followed, "followed", changes)
            end = TurnEnd(followed.record_id, "followed", incoming.at, said)
            changes.turns.append(end)
            for twin in self._by_request.get(followed.request, ()):
                if self._marks[twin].state == "open":
                    self._set(self._marks[twin], "passed", changes)
        if len(self._marks) >= MAX_RUN:
            self._end("idle", incoming.at, changes)
        first = next(iter(self._marks.values()), None)
        mark = _mark(incoming, first.run if first is not None else incoming.sequence, "open")
        self._add(mark)
        changes.marks[mark.record_id] = mark

    def _followed(self, incoming: Incoming, gapless: bool) -> tuple[Mark | None, Messages]:
        # The exchange that the request goes on from, with the messages after its answer.
        found: Mark | None = None
        said: Messages = ()
        for depth, prefix in enumerate(incoming.prints.prefixes):
            if prefix in self._by_tail:
                found = self._waiting(self._by_tail[prefix])
                said = said_after(incoming.messages, depth)
                break
        if found is None and incoming.tagged and gapless:
            # The client names the session, and may have rewritten its history.
            latest, repeated = self.last, incoming.prints.request in self._by_request
            if latest is not None and latest.state == "open" and not repeated:
                found = latest if incoming.began_at >= latest.at else None
                said = said_after(incoming.messages)
        return (found, said) if said else (None, ())

    def _waiting(self, record_ids: Sequence[str]) -> Mark | None:
        waiting = [self._marks[name] for name in record_ids]
        waiting = [mark for mark in waiting if mark.state in ("open", "passed")]
        return max(waiting, key=lambda mark: (mark.state == "open", mark.sequence), default=None)

    def _end(self, ended: Literal["closed", "idle"], at: datetime, changes: Changes) -> None:
        for mark in tuple(self._marks.values()):
            if mark.state == "open":
                self._set(mark, ended, changes)
                changes.turns.append(TurnEnd(mark.record_id, ended, at))
            elif mark.state == "passed":
                self._set(mark, "abandoned", changes)
        kept = tuple(name for name, m in self._marks.items() if m.state != "abandoned")
        if kept:
            changes.runs.append(RunEnd(kept, ended, at))
        self._begin()

    def _begin(self) -> None:
        self.last_at = _NEVER
        self._marks: dict[str, Mark] = {}
        self._by_tail: dict[str, list[str]] = {}
        self._by_request: dict[str, list[str]] = {}

    def _add(self, mark: Mark) -> None:
        self.last_at = max(self.last_at, mark.at)
        self._marks[mark.record_id] = mark
        for tail in mark.tails:
            self._by_tail.setdefault(tail, []).append(mark.record_id)
        if mark.request:
            self._by_request.setdefault(mark.request, []).append(mark.record_id)

    def _set(self, mark: Mark, state: State, changes: Changes) -> None:
        changed = replace(mark, state=state)
        self._marks[mark.record_id] = changed
        changes.marks[mark.record_id] = changed


def said_after(messages: Messages, depth: int = 0) -> Messages:
    """Return the user's and the tools' messages after an earlier answer in a request.

    `depth` 0: after the last answer, 1: after the answer before it. Without any answer: all.
    """
    ends = [n for n, m in enumerate(messages, 1) if m.get("role") == "assistant"]
    # A request may end with the beginning of the answer that it asks for.
    ends = [end for end in ends if end < len(messages)]
    said: list[dict[str, Any]] = []
    for message in messages[ends[-1 - depth] if ends else 0 :]:
        role = role_of(message)
        if role == "assistant" and said:
            break
        if role not in ("assistant", "system"):
            said.append(message)
    return tuple(said)


def _mark(incoming: Incoming, run: int, state: State) -> Mark:
    prints = incoming.prints
    return Mark(
        incoming.record_id,
        incoming.sequence,
        run,
        prints.request,
        prints.tails,
        incoming.at,
        incoming.partition,
        state,
    )
