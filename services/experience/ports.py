"""What the experience service needs of the outside, and the rows that go there."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

from reefcommon.errors import ReefError
from reefcommon.events import BodyRef, Event, SampleReady
from services.experience.domain.parking import Parked
from services.experience.domain.samples import Record
from services.experience.domain.sessions import Assignment, Key, Session


class UnknownCursor(ReefError):
    """No page ends with this id: a list is gone on with at the `next_cursor` of one of its pages."""


ReportState = Literal["parked", "expired", "refused", "joined"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """One message of a topic. `event` is None where it could not be decoded; `flaw` then says why."""

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
    """What has become of a report. `version` decides between two states of one report."""

    parked: Parked
    state: ReportState
    sample_id: str | None
    version: int


class Known(NamedTuple):
    """What the store knows of a report. `parked_at`: since when it waits; `partition`, `offset`: where it lay first."""

    digest: str
    state: ReportState
    parked_at: datetime
    partition: int
    offset: int


class RecordStore(Protocol):
    """Rows of exchanges. All methods raise Unavailable while the store does not answer, and Poison where it refuses a row."""

    async def places(self, record_ids: Sequence[str]) -> Mapping[str, tuple[str, Assignment]]:
        """(digest, place) of each of these records that is known."""

    async def records(self, record_ids: Iterable[str]) -> Mapping[str, Record]:
        """Each of these records that is known."""

    async def insert_records(self, records: Sequence[Record]) -> None:
        """Returns when the rows are durable."""


class SessionStore(Protocol):
    """Rows of sessions."""

    async def sessions(
        self, keys: Iterable[Key], tails: Iterable[Key], requests: Iterable[Key] = ()
    ) -> Sequence[Session]:
        """The sessions with these (scenario, id), and those whose latest exchange ends in, or asked, one of these (scenario, hash)."""

    async def recent_sessions(self, *, within_s: float, limit: int) -> Sequence[Session]:
        """The latest sessions, oldest first, no older than the newest one less `within_s`."""

    async def insert_sessions(self, sessions: Sequence[Session]) -> None:
        """Returns when the rows are durable."""


class ReportStore(Protocol):
    """Rows of reports and of the samples that they make."""

    async def report_states(self, report_ids: Sequence[str]) -> Mapping[str, Known]:
        """Each of these reports that is known."""

    async def parked(self, *, after: str, limit: int) -> Sequence[Parked]:
        """Reports that wait, in order of their ids, from the first one after `after`."""

    async def has_expired(self) -> bool:
        """Whether any report waited in vain."""

    async def expired(self, record_ids: Sequence[str]) -> Sequence[Parked]:
        """Reports that waited in vain for one of these records, among others, in order of their ids."""

    async def insert_samples(self, samples: Sequence[SampleReady]) -> None:
        """Returns when the rows are durable."""

    async def insert_reports(self, rows: Sequence[ReportRow]) -> None:
        """Returns when the rows are durable."""


class OutcomeStore(Protocol):
    """Rows of what was made of the samples: steps, refusals, releases, servings."""

    async def insert_outcomes(self, events: Sequence[Event]) -> None:
        """Returns when the rows are durable. Events of other types are passed over."""


class ExperienceStore(RecordStore, SessionStore, ReportStore, OutcomeStore, Protocol):
    """Everything that this service writes."""


class KeyReads(Protocol):
    """What lies under an id. Raises Unavailable while the store does not answer."""

    async def key(self, key: str) -> dict[str, Any] | None:
        """An exchange with its answer, or a report, with the digest of what was asked; None: neither."""


class Handled(Protocol):
    """How far the log is handled."""

    async def reaches(self, until: float, *, within_s: float) -> bool:
        """Whether everything that was in the log at this time (Unix seconds) is in the store, now or within so many seconds."""


RowKey = Sequence[str]
"""The values of a table's key, in its order."""
RowDigests = list[tuple[tuple[str, ...], str]]
"""(key, digest) of rows, in the order of their keys."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Some rows in the order of their keys, as one digest. `until`: the last key; None: they go to the end of the table."""

    count: int
    digest: str
    until: tuple[str, ...] | None


class Audit(Protocol):
    """A store as it is held against another one. Raises Unavailable while it does not answer."""

    async def page(self, table: str, *, after: RowKey | None, limit: int) -> Slice: ...
    async def span(self, table: str, *, after: RowKey | None, until: RowKey | None) -> Slice: ...
    async def rows(
        self, table: str, *, after: RowKey | None, until: RowKey | None
    ) -> RowDigests: ...
    async def picked(self, table: str, keys: Sequence[RowKey]) -> RowDigests: ...
    async def row(self, table: str, key: RowKey) -> dict[str, str] | None: ...


class DeadLetters(Protocol):
    """Where events go that can never be handled."""

    async def bury(self, arrival: Arrival, reason: str, *, waited: bool = False) -> None:
        """`waited`: in vain, for what never came. Raises Unavailable where the broker does not acknowledge, or where there are too many."""


class BodyStore(Protocol):
    """Bodies too large for an event."""

    async def read(self, ref: BodyRef) -> bytes:
        """A body, compared with its digest. Raises BodyMissing, Unavailable, Poison."""
