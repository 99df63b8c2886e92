"""The ports of the experience service and their rows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

from reefcommon.errors import ReefError
from reefcommon.events import BodyRef, Event, SampleReady, Unit
from services.experience.domain.line import Mark
from services.experience.domain.parking import Parked
from services.experience.domain.samples import Record
from services.experience.domain.sessions import Assignment, Key, Session
from services.experience.wants import Period


class UnknownCursor(ReefError):
    """No page of the list ends with this id."""


# `refused`: its sample was refused by the store or by the broker.
ReportState = Literal["parked", "expired", "refused", "joined"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message of a topic. If it cannot be decoded, `event` is None and `flaw` says why."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes
    event: Event | None
    flaw: str = ""
    headers: tuple[tuple[str, bytes], ...] = ()


@dataclass(frozen=True, slots=True)
class ReportRow:
    """The state of a report. The greatest `version` counts."""

    parked: Parked
    state: ReportState
    sample_id: str | None
    version: int


class Known(NamedTuple):
    """A stored report: when it began to wait (`parked_at`), and its first place in the log."""

    digest: str
    state: ReportState
    parked_at: datetime
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A session that has not ended: its latest open exchange, and its partition of the log."""

    key: Key
    last_at: datetime
    partition: int


class ExperienceStore(Protocol):
    """All tables that this service writes. An insert returns when the rows are durable.

    Methods raise Unavailable if the store does not answer, and Poison if it refuses a row.
    """

    async def places(self, record_ids: Sequence[str]) -> Mapping[str, tuple[str, Assignment]]:
        """Return (digest, place) of each known record."""

    async def records(self, record_ids: Iterable[str]) -> Mapping[str, Record]:
        """Return the known records."""

    async def insert_records(self, records: Sequence[Record]) -> None:
        """Insert rows."""

    async def sessions(
        self, keys: Iterable[Key], tails: Iterable[Key], requests: Iterable[Key] = ()
    ) -> Sequence[Session]:
        """Return the sessions with these (scenario, id), and the untagged sessions that have a
        node with such a (scenario, tail) or (scenario, request).
        """

    async def recent_sessions(self, *, within_s: float, limit: int) -> Sequence[Session]:
        """Return the latest sessions, oldest first, within `within_s` of the newest."""

    async def insert_sessions(self, sessions: Sequence[Session]) -> None:
        """Insert rows."""

    async def marks(self, keys: Iterable[Key]) -> Mapping[Key, Sequence[Mark]]:
        """Return the exchanges of these sessions in a state of CURRENT, and the latest of each."""

    async def open_runs(self) -> Sequence[OpenRun]:
        """Return all sessions with an open exchange."""

    async def insert_marks(self, marks: Sequence[tuple[Key, Mark]]) -> None:
        """Insert rows, all or none. An earlier state never replaces a later one."""

    async def has_records(self) -> bool:
        """Return whether any exchange was recorded."""

    async def periods(self) -> Sequence[Period]:
        """Return the times in which recipes want units."""

    async def insert_periods(self, periods: Sequence[Period]) -> None:
        """Insert rows. A row replaces the row that began at the same time."""

    async def insert_units(self, units: Sequence[Unit]) -> None:
        """Insert rows of turns and sessions."""

    async def report_states(self, report_ids: Sequence[str]) -> Mapping[str, Known]:
        """Return the known reports."""

    async def parked(self, *, after: str, limit: int) -> Sequence[Parked]:
        """Return waiting reports in the order of ids, from the first after `after`."""

    async def has_expired(self) -> bool:
        """Return whether any report has expired."""

    async def expired(self, record_ids: Sequence[str]) -> Sequence[Parked]:
        """Return expired reports on any of these records, in the order of ids."""

    async def insert_samples(self, samples: Sequence[SampleReady]) -> None:
        """Insert rows."""

    async def insert_reports(self, rows: Sequence[ReportRow]) -> None:
        """Insert rows."""

    async def insert_outcomes(self, events: Sequence[Event]) -> None:
        """Insert the rows of these events; other types are ignored."""


class Page(TypedDict):
    """Rows, and the cursor of the next page; None after the last."""

    data: list[dict[str, Any]]
    next_cursor: str | None


RowKey = Sequence[str]
"""The values of a table's key, in its order."""
Bound = RowKey | None
"""An end of a range; None: the table's."""
RowDigests = list[tuple[tuple[str, ...], str]]
"""(key, digest) of rows, in the order of their keys."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows in key order as one digest. `until`: the last key; None at the table's end."""

    count: int
    digest: str
    until: tuple[str, ...] | None


class Audit(Protocol):
    """Digests of a store. Raise Unavailable."""

    async def page(self, table: str, *, after: Bound, limit: int) -> Slice: ...
    async def span(self, table: str, *, after: Bound, until: Bound) -> Slice: ...
    async def rows(self, table: str, *, after: Bound, until: Bound) -> RowDigests: ...
    async def picked(self, table: str, keys: Sequence[RowKey]) -> RowDigests: ...
    async def row(self, table: str, key: RowKey) -> dict[str, str] | None: ...


class DeadLetters(Protocol):
    """Takes the events that can never be handled."""

    async def bury(self, arrival: Arrival, reason: str, *, waited: bool = False) -> None:
        """Write a dead letter. `waited`: its records never came.

        Raises:
            Unavailable: no acknowledgement, or the limit of dead letters is reached.
        """


class BodyStore(Protocol):
    """Bodies that are too large for an event."""

    async def read(self, ref: BodyRef) -> bytes:
        """Return a body, compared with its digest. Raises BodyMissing, Unavailable, Poison."""
