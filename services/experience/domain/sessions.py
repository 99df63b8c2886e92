"""The session of a record. The turns of a session form a tree by their content."""

# A tag names the session. Without a tag, a request that begins with an earlier request and its
# answer continues that turn's session, and an equal request repeats that turn. Any other record
# opens a session. Two callers never share a session. The times of the events count, and the store
# is asked for sessions that memory has let go: a second reading of the log, with other memory
# limits, gives the same sessions.

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from reefcommon.ids import digest
from services.experience.domain.conversation import Fingerprint

Key = tuple[str, str]
"""(scenario, session id), or (scenario, hash)."""

MAX_NODES = 128


@dataclass(frozen=True, slots=True)
class Assignment:
    """The place of a record: `turn` is its depth from 0; `sequence` counts records from 1.

    `retry_of`: the first record of the session with the same request.
    """

    session_id: str
    turn: int
    sequence: int
    retry_of: str | None = None


@dataclass(frozen=True, slots=True)
class Node:
    """A record in the tree: hashes of its request and of each conversation that it ends."""

    record_id: str
    turn: int
    request: str
    tails: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Session:
    """A session as of its latest record. The greater `sequence` is newer.

    `nodes` are its latest records, oldest first. A turn that continues an older record opens
    another session.
    """

    session_id: str
    scenario: str
    tagged: bool
    caller: str
    turns: int
    sequence: int
    first_at: datetime
    last_at: datetime
    turn_record_id: str
    nodes: tuple[Node, ...]

    @property
    def key(self) -> Key:
        # Session ids are unique within a scenario only: a client may use a tag in two.
        return self.scenario, self.session_id

    @property
    def request_hashes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(node.request for node in self.nodes if node.request))

    @property
    def tail_hashes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(tail for node in self.nodes for tail in node.tails))


@dataclass(frozen=True, slots=True)
class Entry:
    """The facts of a record that decide its place."""

    record_id: str
    scenario: str
    at: datetime
    tag: str | None
    fingerprint: Fingerprint
    caller: str = ""

    @property
    def tag_keys(self) -> tuple[Key, ...]:
        """The sessions that its tag may name: the first caller has the tag itself."""
        if self.tag is None:
            return ()
        other = "ses-" + digest("tag", self.scenario, self.tag, self.caller)
        return (self.scenario, self.tag), (self.scenario, other)


class SessionBook:
    """The open sessions, bounded in number and time. `restore` puts an evicted session back.

    Until `settle`, `assign` repeats its answer for a record: a batch may be tried again.
    """

    def __init__(self, *, max_open: int, ttl_s: float) -> None:
        self._max_open = max_open
        self._ttl = timedelta(seconds=ttl_s)
        self._sessions: OrderedDict[Key, Session] = OrderedDict()
        self._by_request: dict[Key, Key] = {}
        self._by_tail: dict[Key, Key] = {}
        self._unsettled: dict[str, Assignment] = {}
        # Sessions that were last used then or before may be open in the store alone.
        self._forgotten: datetime | None = None
        self.evicted = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, key: Key) -> Session | None:
        return self._sessions.get(key)

    def restore(self, sessions: Iterable[Session]) -> None:
        """Put back sessions from the store, unless a newer state is here."""
        for session in sessions:
            known = self._sessions.get(session.key)
            if known is None or known.sequence < session.sequence:
                self._put(session)

    def note_missing(self, at: datetime) -> None:
        """Note that sessions up to this time may be in the store and not here."""
        self._forgotten = at if self._forgotten is None else max(self._forgotten, at)

    def missing(self, entries: Iterable[Entry]) -> tuple[set[Key], set[Key], set[Key]]:
        """Return (tagged sessions, tails, requests) that the store may know and memory does not."""
        tags, tails, requests, within = (set[Key]() for _ in range(4))
        for entry in entries:
            prints = entry.fingerprint
            if entry.tag is not None:
                if self._find(entry) is None:
                    tags.update(key for key in entry.tag_keys if key not in self._sessions)
            elif self._forgotten is not None and entry.at - self._forgotten <= self._ttl:
                if self._same(entry) is None:
                    tails.update((entry.scenario, prefix) for prefix in self._unknown(entry))
                    requests.update({(entry.scenario, prints.request)} if prints.request else ())
            elif prints.prefixes and self._continued(entry) is None:
                tails.add((entry.scenario, prints.prefixes[0]))
            within.update((entry.scenario, tail) for tail in prints.tails)
        # A turn that an earlier one of the same batch answers needs no query.
        return tags, tails - within, requests

    def assign(self, entry: Entry) -> Assignment:
        """Give a new record its place. The session advances."""
        if (before := self._unsettled.get(entry.record_id)) is not None:
            return before
        session = self._find(entry)
        assignment = self._place(entry, session)
        self._unsettled[entry.record_id] = assignment
        self._advance(entry, assignment, session)
        return assignment

    def replay(self, entry: Entry, assignment: Assignment) -> None:
        """Take a record with a known place. Its session advances if it had not seen it."""
        session = self._sessions.get((entry.scenario, assignment.session_id))
        if session is None or session.sequence < assignment.sequence:
            self._advance(entry, assignment, session)

    def settle(self, record_ids: Iterable[str], *, newest: datetime) -> None:
        """Note that the rows of these records and sessions are durable.

        Evicts sessions closed long before `newest`, and the least recently used if there are too
        many.
        """
        for record_id in record_ids:
            self._unsettled.pop(record_id, None)
        while self._sessions:
            key, session = next(iter(self._sessions.items()))
            closed = newest - session.last_at > self._ttl
            if not closed and len(self._sessions) <= self._max_open:
                break
            self.note_missing(session.last_at)
            self._unlist(self._sessions.pop(key))
            self.evicted += not closed

    def _find(self, entry: Entry) -> Session | None:
        if entry.tag is None:
            return self._same(entry) or self._continued(entry)
        plain, own = entry.tag_keys
        session = self._sessions.get(plain)
        return session if session is None or session.caller == entry.caller else self.get(own)

    def _same(self, entry: Entry) -> Session | None:
        request = entry.fingerprint.request
        if not request:
            return None
        return self._open(self._by_request.get((entry.scenario, request)), entry.at)

    def _continued(self, entry: Entry) -> Session | None:
        found = (
            self._open(self._by_tail.get((entry.scenario, prefix)), entry.at)
            for prefix in entry.fingerprint.prefixes
        )
        return next((session for session in found if session is not None), None)

    def _unknown(self, entry: Entry) -> tuple[str, ...]:
        # Longest first, down to the prefix that an open session ends in.
        for number, prefix in enumerate(entry.fingerprint.prefixes):
            if self._open(self._by_tail.get((entry.scenario, prefix)), entry.at) is not None:
                return entry.fingerprint.prefixes[:number]
        return entry.fingerprint.prefixes

    def _open(self, key: Key | None, at: datetime) -> Session | None:
        session = None if key is None else self._sessions.get(key)
        return session if session is not None and at - session.last_at <= self._ttl else None

    def _place(self, entry: Entry, session: Session | None) -> Assignment:
        prints = entry.fingerprint
        if session is None:
            return Assignment(self._fresh_id(entry), 0, 1)
        session_id, sequence = session.session_id, session.sequence + 1
        # The first equal request is the turn; later ones repeat it.
        for node in session.nodes:
            if prints.request and node.request == prints.request:
                return Assignment(session_id, node.turn, sequence, node.record_id)
        for prefix in prints.prefixes:
            for node in reversed(session.nodes):
                if prefix in node.tails:
                    return Assignment(session_id, node.turn + 1, sequence)
        return Assignment(session_id, session.turns, sequence)

    def _fresh_id(self, entry: Entry) -> str:
        if entry.tag is None:
            return "ses-" + digest("session", entry.scenario, entry.record_id)
        plain, own = entry.tag_keys
        return (own if plain in self._sessions else plain)[1]

    def _advance(self, entry: Entry, place: Assignment, session: Session | None) -> None:
        prints, at = entry.fingerprint, entry.at
        node = Node(entry.record_id, place.turn, prints.request, prints.tails)
        if session is None:
            owner = (place.session_id, entry.scenario, entry.tag is not None, entry.caller)
            session = Session(*owner, 0, 0, first_at=at, last_at=at, turn_record_id="", nodes=())
        advanced = replace(
            session,
            turns=max(place.turn + 1, session.turns),
            sequence=place.sequence,
            last_at=max(session.last_at, at),
            turn_record_id=place.retry_of or entry.record_id,
            nodes=(*session.nodes, node)[-MAX_NODES:],
        )
        self._put(advanced)

    def _put(self, session: Session) -> None:
        key, known = session.key, self._sessions.pop(session.key, None)
        # A session that only grew keeps its hashes: they are written again below.
        if known is not None and session.nodes[: len(known.nodes)] != known.nodes:
            self._unlist(known)
        self._sessions[key] = session
        # A tagged session is found by its tag alone.
        if session.tagged:
            return
        for node in session.nodes:
            if node.request:
                self._by_request[session.scenario, node.request] = key
            for tail in node.tails:
                self._by_tail[session.scenario, tail] = key

    def _unlist(self, session: Session) -> None:
        for index, hashes in (
            (self._by_request, session.request_hashes),
            (self._by_tail, session.tail_hashes),
        ):
            for found in hashes:
                if index.get((session.scenario, found)) == session.key:
                    del index[session.scenario, found]
