"""Which session a record belongs to.

A tag wins. Else a request that strictly extends an open session's last request and its answer continues that session; a request equal to
an open session's last one is a retry, and the first receipt keeps the turn. Everything else opens a session. The time that counts is
that of the events, and what memory has let go is asked of the store: reading the log again, in one go and with other memory limits, gives
the same sessions.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from reefcommon.ids import digest
from services.experience.domain.conversation import Fingerprint

Key = tuple[str, str]
"""(scenario, session id), or (scenario, hash)."""

MAX_TAILS = 64  # answers of retries of one turn that a client may go on from


@dataclass(frozen=True, slots=True)
class Assignment:
    """Where a record stands: `turn` counts from 0; `sequence` counts all records of the session from 1, retries too."""

    session_id: str
    turn: int
    sequence: int
    retry_of: str | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """A session as of its latest record. `sequence` grows with each record: of two states the one with the greater is newer."""

    session_id: str
    scenario: str
    tagged: bool
    turns: int
    sequence: int
    first_at: datetime
    last_at: datetime
    turn_record_id: str
    request_hash: str
    tail_hashes: tuple[str, ...]

    @property
    def key(self) -> Key:
        """Session ids are unique within a scenario only: a client may use one tag in two."""
        return self.scenario, self.session_id


@dataclass(frozen=True, slots=True)
class Entry:
    """What the book needs of one record."""

    record_id: str
    scenario: str
    at: datetime
    tag: str | None
    fingerprint: Fingerprint


class SessionBook:
    """The open sessions. Bounded in number and in time; an evicted session is not lost, it can be put back with `restore`.

    `assign` answers the same for a record until `settle` says that its row is durable: a batch that is tried again changes nothing.
    """

    def __init__(self, *, max_open: int, ttl_s: float) -> None:
        self._max_open = max_open
        self._ttl = timedelta(seconds=ttl_s)
        self._sessions: OrderedDict[Key, Session] = OrderedDict()
        self._by_request: dict[Key, Key] = {}
        self._by_tail: dict[Key, Key] = {}
        self._unsettled: dict[str, Assignment] = {}
        self._forgotten: datetime | None = (
            None  # sessions last used then or before may be open in the store alone
        )
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: Key) -> Session | None:
        """The open session with this scenario and id."""
        return self._sessions.get(key)

    def restore(self, sessions: Iterable[Session]) -> None:
        """Put back sessions that were read from the store. A newer state that is already here stays."""
        for session in sessions:
            known = self._sessions.get(session.key)
            if known is None or known.sequence < session.sequence:
                self._put(session)

    def forget(self, at: datetime) -> None:
        """Others may have handled sessions up to this time: what is not here may be in the store."""
        self._forgotten = at if self._forgotten is None else max(self._forgotten, at)

    def missing(self, entries: Iterable[Entry]) -> tuple[set[Key], set[Key], set[Key]]:
        """What the store may know better: (tagged sessions, beginnings of requests that end in an answer, requests) that are not here."""
        tags: set[Key] = set()
        tails: set[Key] = set()
        requests: set[Key] = set()
        within: set[Key] = set()
        for entry in entries:
            if entry.tag is not None:
                if (entry.scenario, entry.tag) not in self._sessions:
                    tags.add((entry.scenario, entry.tag))
            elif self._forgotten is not None and entry.at - self._forgotten <= self._ttl:
                if self._same(entry) is None:
                    tails.update((entry.scenario, prefix) for prefix in self._unknown(entry))
                    requests.update(
                        {(entry.scenario, entry.fingerprint.request)}
                        if entry.fingerprint.request
                        else ()
                    )
            elif entry.fingerprint.prefixes and self._continued(entry) is None:
                tails.add((entry.scenario, entry.fingerprint.prefixes[0]))
            within.update((entry.scenario, tail) for tail in entry.fingerprint.tails)
        return (
            tags,
            tails - within,
            requests,
        )  # what a turn of the same batch answers need not be asked for

    def _unknown(self, entry: Entry) -> tuple[str, ...]:
        """The beginnings of a request, longest first, down to the one that an open session here is known by."""
        for number, prefix in enumerate(entry.fingerprint.prefixes):
            if self._open(self._by_tail.get((entry.scenario, prefix)), entry.at) is not None:
                return entry.fingerprint.prefixes[:number]
        return entry.fingerprint.prefixes

    def assign(self, entry: Entry) -> Assignment:
        """The place of a new record. The session advances."""
        if (before := self._unsettled.get(entry.record_id)) is not None:
            return before
        session, retry = self._find(entry)
        assignment = self._place(entry, session, retry=retry)
        self._unsettled[entry.record_id] = assignment
        self._advance(entry, assignment, session)
        return assignment

    def replay(self, entry: Entry, assignment: Assignment) -> None:
        """A record whose place is known already: its session advances only where it had not seen the record."""
        session = self._sessions.get((entry.scenario, assignment.session_id))
        if session is None or session.sequence < assignment.sequence:
            self._advance(entry, assignment, session)

    def settle(self, record_ids: Iterable[str], *, newest: datetime) -> None:
        """The rows of these records and of their sessions are durable, so that sessions may be put out of memory: those that were
        closed long before `newest`, and the least recently used where there are too many."""
        for record_id in record_ids:
            self._unsettled.pop(record_id, None)
        while self._sessions:
            key, session = next(iter(self._sessions.items()))
            if newest - session.last_at <= self._ttl:
                break
            self.forget(session.last_at)
            self._drop(key)
        self._evict()

    def _find(self, entry: Entry) -> tuple[Session | None, bool]:
        request = entry.fingerprint.request
        if entry.tag is not None:
            tagged = self._sessions.get((entry.scenario, entry.tag))
            return tagged, tagged is not None and bool(request) and tagged.request_hash == request
        same = self._same(entry)
        return (same, True) if same is not None else (self._continued(entry), False)

    def _same(self, entry: Entry) -> Session | None:
        request = entry.fingerprint.request
        return (
            self._open(self._by_request.get((entry.scenario, request)), entry.at)
            if request
            else None
        )

    def _continued(self, entry: Entry) -> Session | None:
        found = (
            self._open(self._by_tail.get((entry.scenario, prefix)), entry.at)
            for prefix in entry.fingerprint.prefixes
        )
        return next((session for session in found if session is not None), None)

    def _open(self, key: Key | None, at: datetime) -> Session | None:
        session = None if key is None else self._sessions.get(key)
        return session if session is not None and at - session.last_at <= self._ttl else None

    def _place(self, entry: Entry, session: Session | None, *, retry: bool) -> Assignment:
        if session is None:
            fresh = (
                entry.tag
                if entry.tag is not None
                else "ses-" + digest("session", entry.scenario, entry.record_id)
            )
            return Assignment(fresh, 0, 1)
        if retry:
            return Assignment(
                session.session_id, session.turns - 1, session.sequence + 1, session.turn_record_id
            )
        return Assignment(session.session_id, session.turns, session.sequence + 1)

    def _advance(self, entry: Entry, assignment: Assignment, session: Session | None) -> None:
        tails = entry.fingerprint.tails
        if session is not None and assignment.retry_of is not None:
            merged = tuple(dict.fromkeys((*session.tail_hashes, *tails)))[:MAX_TAILS]
            moved = replace(
                session,
                sequence=assignment.sequence,
                last_at=max(session.last_at, entry.at),
                tail_hashes=merged,
            )
        else:
            moved = Session(
                session_id=assignment.session_id,
                scenario=entry.scenario,
                tagged=entry.tag is not None,
                turns=assignment.turn + 1,
                sequence=assignment.sequence,
                first_at=entry.at if session is None else session.first_at,
                last_at=entry.at if session is None else max(session.last_at, entry.at),
                turn_record_id=assignment.retry_of or entry.record_id,
                request_hash=entry.fingerprint.request,
                tail_hashes=tails,
            )
        self._put(moved)

    def _put(self, session: Session) -> None:
        self._drop(session.key)
        self._sessions[session.key] = session
        if session.tagged:
            return  # found by its tag alone
        if session.request_hash:
            self._by_request[session.scenario, session.request_hash] = session.key
        for tail in session.tail_hashes:
            self._by_tail[session.scenario, tail] = session.key

    def _drop(self, key: Key) -> None:
        session = self._sessions.pop(key, None)
        if session is None:
            return
        scenario = session.scenario
        if self._by_request.get((scenario, session.request_hash)) == key:
            del self._by_request[scenario, session.request_hash]
        for tail in session.tail_hashes:
            if self._by_tail.get((scenario, tail)) == key:
                del self._by_tail[scenario, tail]

    def _evict(self) -> None:
        while len(self._sessions) > self._max_open:
            key, session = next(iter(self._sessions.items()))
            self.forget(session.last_at)
            self._drop(key)
            self.evicted += 1
