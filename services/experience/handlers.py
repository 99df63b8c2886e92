"""The handlers of the experience service."""

#     inferences   known already? --no--> its place in a session --> rows: records, sessions
#     feedback     `reports.py`: joined with its records, or parked until they come
#                  `units.py`: turns and ended sessions, if a recipe wants them
#     outcomes     steps, refusals, signals, releases, servings --> rows
#
# Offsets are committed after a handler returns.

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from reefcommon.errors import Poison
from reefcommon.events import FeedbackReported, InferenceRecorded
from services.experience.domain.conversation import fingerprint
from services.experience.domain.parking import Parking
from services.experience.domain.samples import Record
from services.experience.domain.sessions import Assignment, Entry, Session, SessionBook
from services.experience.metrics import CONFLICTS, EVICTED, OPEN, PARKED, REPEATS
from services.experience.ports import Arrival
from services.experience.reports import DeadArrivals, Reports
from services.experience.units import Horizon, Units
from services.experience.wants import Periods, Wants

log = structlog.get_logger()

SWEEP_PAGE = 500
LOOK_EVERY_SWEEPS = 6


@dataclass(slots=True)
class Handlers(Reports):
    """Handles batches in turn: the session book, the parking and the lines are not shared."""

    wants: Wants = field(default_factory=Wants)
    units: Units = field(init=False)
    book: SessionBook = field(init=False)
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    _next_offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    _sweeps: int = 0

    def __post_init__(self) -> None:
        limits = self.settings
        self.book = SessionBook(max_open=limits.max_open_sessions, ttl_s=limits.session_ttl_s)
        self.parking = Parking(limit=limits.max_parked)
        parts = (limits, Periods.begun(self.wants), self.store, self.publisher)
        self.units = Units(*parts, self.with_texts)

    async def on_start(self) -> None:
        """Restore the open sessions from the store. Raises Unavailable."""
        within_s, limit = self.settings.session_ttl_s, self.settings.max_open_sessions
        sessions = await self.store.recent_sessions(within_s=within_s, limit=limit)
        self.book.restore(sessions)
        if sessions:
            # Older sessions than these may be open in the store alone.
            oldest = sessions[-1].last_at - timedelta(seconds=within_s)
            self.book.note_missing(sessions[0].last_at if len(sessions) == limit else oldest)
        self.parking.expired = await self.store.has_expired()
        await self.units.begin(self.wants, self.now())
        log.info("sessions_restored", open=len(self.book))

    async def on_events(self, arrivals: Sequence[Arrival]) -> None:
        """Handle a batch of events.

        Raises:
            Unavailable: try the same batch again; a repetition completes what was written in part.
        """
        # The sweep changes the same book and parking.
        async with self._one_at_a_time:
            try:
                await self._take(arrivals)
            except Poison as error:
                await self._one_by_one(arrivals, error)
        self._show()

    async def sweep(self, *, caught_up: bool, horizon: Horizon | None = None) -> None:
        """Retry all waiting reports. If `caught_up` with the log, give up those of too long ago.

        Then sessions end that were idle for too long before `horizon`, or before now.
        """
        async with self._one_at_a_time:
            after = ""
            # The store may have reports that another process has parked, or one before this.
            looks = len(self.parking) > 0 or self._sweeps % LOOK_EVERY_SWEEPS == 0
            while looks and (page := await self.store.parked(after=after, limit=SWEEP_PAGE)):
                after = page[-1].report.event_id
                still_waiting = await self.join(page, {})
                # The machine's clock, as for `parked_at`: a log that is read again is old.
                limit = self.now() - self.report_wait
                if caught_up:
                    await self.expire(one for one in still_waiting if one.parked_at < limit)
            self._sweeps += 1  # only now: a look that failed is made again by the next sweep
            if caught_up:
                await self.units.sweep(horizon or Horizon(self.now()))
        self._show()

    async def _take(self, arrivals: Sequence[Arrival]) -> None:
        dead: DeadArrivals = [(each, each.flaw) for each in arrivals if each.event is None]
        await self.store.insert_outcomes([each.event for each in arrivals if each.event])
        inferences = [(a, a.event) for a in arrivals if isinstance(a.event, InferenceRecorded)]
        feedback = [(a, a.event) for a in arrivals if isinstance(a.event, FeedbackReported)]
        records = await self._record(inferences, dead) if inferences else {}
        reports = await self.new_reports(feedback, dead) if feedback else {}
        # Expired reports wait in the store alone; a late record still joins them.
        late = await self.store.expired(list(records)) if records and self.parking.expired else ()
        reports |= {
            parked.report.event_id: parked for parked in (*late, *self.parking.waiting_for(records))
        }
        if reports:
            await self.join(list(reports.values()), records)
        # Last: the others of the batch have had their effect then.
        await self.bury(dead)

    async def _record(
        self, arrivals: Sequence[tuple[Arrival, InferenceRecorded]], dead: DeadArrivals
    ) -> dict[str, Record]:
        self._follow(arrivals)
        known = await self.store.places([event.event_id for _, event in arrivals])
        taken = self._without_conflicts(arrivals, known, dead)
        # The first arrival of a record decides its shard.
        shards = {event.event_id: arrival.key or b"" for arrival, event in reversed(arrivals)}
        entries = {key: await self._entry(event, shards[key]) for key, (event, _) in taken.items()}
        settled = {key: place for key, (_, place) in known.items() if key in taken}
        places, sessions = await self._places(entries, settled)
        records = {key: Record(*content, places[key]) for key, content in taken.items()}
        new = [record for key, record in records.items() if key not in known]
        await self.store.insert_records(new)
        await self.store.insert_sessions(sessions)
        if entries:
            # Only now: a session that is put out of memory must be in the store.
            self.book.settle(entries, newest=max(entry.at for entry in entries.values()))
        if self.units.periods.rows:
            first = {event.event_id: arrival for arrival, event in reversed(arrivals)}
            partitions = {key: first[key].partition for key in entries}
            await self.units.take(entries.values(), records, partitions, known)
        return records

    @staticmethod
    def _without_conflicts(
        arrivals: Sequence[tuple[Arrival, InferenceRecorded]],
        known: Mapping[str, tuple[str, Assignment]],
        dead: DeadArrivals,
    ) -> dict[str, tuple[InferenceRecorded, str]]:
        # In order of arrival, which is the order of the turns.
        taken: dict[str, tuple[InferenceRecorded, str]] = {}
        for arrival, event in arrivals:
            digest = hashlib.blake2b(arrival.value, digest_size=16).hexdigest()
            _, first = taken.get(event.event_id, (event, digest))
            before, _ = known.get(event.event_id, (first, None))
            if before != digest:
                CONFLICTS.labels(arrival.topic).inc()
                dead.append((arrival, f"conflict: {event.event_id} is known with other content"))
                continue
            if event.event_id in taken or event.event_id in known:
                REPEATS.labels(arrival.topic).inc()
            taken.setdefault(event.event_id, (event, digest))
        return taken

    async def _places(
        self, entries: Mapping[str, Entry], known: Mapping[str, Assignment]
    ) -> tuple[dict[str, Assignment], list[Session]]:
        keys, tails, requests = self.book.missing(
            entry for record_id, entry in entries.items() if record_id not in known
        )
        # A record that is known may be of a session that this process has not seen.
        keys |= {(entries[key].scenario, place.session_id) for key, place in known.items()}
        if keys or tails or requests:
            self.book.restore(await self.store.sessions(keys, tails, requests))
        places, sessions = {}, {}
        for record_id, entry in entries.items():
            if (place := known.get(record_id)) is not None:
                self.book.replay(entry, place)
            else:
                place = self.book.assign(entry)
            places[record_id] = place
            if (session := self.book.get((entry.scenario, place.session_id))) is not None:
                sessions[session.key] = session
        return places, list(sessions.values())

    def _follow(self, arrivals: Sequence[tuple[Arrival, InferenceRecorded]]) -> None:
        # Missing offsets were handled by another process, whose sessions are in the store.
        for arrival, event in arrivals:
            expected = self._next_offsets.get((arrival.topic, arrival.partition), 0)
            if arrival.offset > expected:
                self.book.note_missing(event.at)
                self.units.reread()
            self._next_offsets[arrival.topic, arrival.partition] = max(expected, arrival.offset + 1)

    async def _entry(self, event: InferenceRecorded, shard: bytes) -> Entry:
        whole = await self.with_texts(event)
        # Neither two partitions, between which there is no order, nor two callers share a session.
        apart = shard + event.caller.encode()
        prints = fingerprint(whole.request or {}, whole.response, whole.api, shard=apart)
        return Entry(
            event.event_id, event.scenario, event.at, event.session_tag, prints, event.caller
        )

    async def _one_by_one(self, arrivals: Sequence[Arrival], error: Poison) -> None:
        if len(arrivals) == 1:
            await self.bury([(arrivals[0], str(error))])
            return
        # The store refuses a row of the batch: that event alone is dead.
        for arrival in arrivals:
            try:
                await self._take((arrival,))
            except Poison as own:
                await self.bury([(arrival, str(own))])

    def session_facts(self) -> dict[str, int]:
        limit = self.settings.max_open_sessions
        return {"open": len(self.book), "limit": limit, "evicted": self.book.evicted}

    def _show(self) -> None:
        PARKED.set(len(self.parking))
        OPEN.set(len(self.book))
        EVICTED.set(self.book.evicted)
