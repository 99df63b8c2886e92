"""What happens to each event, in the order in which it happens.

    inferences  known already? --no--> its place in a session --> rows: records, sessions
    feedback    all its records known? --yes--> sample: row, then published --> row: report joined
                                       --no---> row: report parked; looked at again when a record comes, and by `sweep`,
                                                which gives it up in time; a record that comes later still joins it
    outcomes    steps, refusals, releases, servings --> rows

The report's row is the mark that it is done, so it is written last. Offsets are committed after a handler returns.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog
from prometheus_client import Counter, Gauge
from pydantic_core import from_json

from reefcommon import topics
from reefcommon.errors import Poison
from reefcommon.events import FeedbackReported, InferenceRecorded, SampleReady
from reefkit.bodies import BodyMissing
from reefkit.bus import EventPublisher
from services.experience.domain.conversation import fingerprint
from services.experience.domain.parking import Parked, Parking
from services.experience.domain.samples import Record, make_samples, wrong_references
from services.experience.domain.sessions import Assignment, Entry, Session, SessionBook
from services.experience.ports import (
    Arrival,
    BodyStore,
    DeadLetters,
    ExperienceStore,
    ReportRow,
    ReportState,
)

log = structlog.get_logger()

SAMPLES = Counter(
    "reef_samples_total",
    "samples made, by why they cannot be trained on (empty: they can)",
    ["untrainable"],
)
REPEATS = Counter("reef_experience_repeats_total", "events that had their effect before", ["topic"])
CONFLICTS = Counter(
    "reef_experience_conflicts_total", "events with a known id and other content", ["topic"]
)
UNRESOLVED = Counter("reef_experience_bodies_missing_total", "large bodies that could not be read")
EXPIRED = Counter("reef_reports_expired_total", "reports whose records never came")
PARKED = Gauge("reef_reports_parked", "reports that wait in memory for their records")
OPEN = Gauge("reef_sessions_open", "sessions in memory that may go on")
EVICTED = Gauge(
    "reef_sessions_evicted",
    "sessions put out of memory since the start because there were too many",
)

SWEEP_PAGE = 500
Dead = list[tuple[Arrival, str]]


@dataclass(frozen=True, slots=True)
class Handlers:
    """The arrivals of the experience service. One batch at a time: the book and the parking are not shared."""

    store: ExperienceStore
    publisher: EventPublisher
    dead: DeadLetters
    bodies: BodyStore
    book: SessionBook
    parking: Parking
    now: Callable[[], datetime]
    report_wait: timedelta
    session_ttl_s: float
    max_open_sessions: int
    _one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)
    """By topic and partition: the time of the latest event that had its effect."""
    _next_offsets: dict[tuple[str, int], int] = field(default_factory=dict)

    async def on_start(self) -> None:
        """Take up the open sessions where the store has them. Raises Unavailable."""
        sessions = await self.store.recent_sessions(
            within_s=self.session_ttl_s, limit=self.max_open_sessions
        )
        self.book.restore(sessions)
        if sessions:
            newest = sessions[-1].last_at - timedelta(seconds=self.session_ttl_s)
            self.book.forget(
                sessions[0].last_at if len(sessions) == self.max_open_sessions else newest
            )
        self.parking.expired = await self.store.has_expired()
        log.info("sessions_restored", open=len(self.book))

    async def on_events(self, arrivals: Sequence[Arrival]) -> None:
        """A batch of events. Raises Unavailable, with nothing half done that a repetition would not mend."""
        async with self._one_at_a_time:
            try:
                await self._take(arrivals)
            except Poison as error:
                await self._one_by_one(arrivals, error)
        self._show()

    async def sweep(self, *, caught_up: bool) -> None:
        """Look at waiting reports again. One that waited too long is dead, but not while events still queue up in the log."""
        async with self._one_at_a_time:
            after = ""
            while page := await self.store.parked(after=after, limit=SWEEP_PAGE):
                after = page[-1].report.event_id
                still_waiting = await self._join(page, {})
                limit = self.now() - self.report_wait
                await self._expire(
                    [parked for parked in still_waiting if caught_up and parked.parked_at < limit]
                )
        self._show()

    async def _take(self, arrivals: Sequence[Arrival]) -> None:
        dead: Dead = [(arrival, arrival.flaw) for arrival in arrivals if arrival.event is None]
        await self.store.insert_outcomes(
            [arrival.event for arrival in arrivals if arrival.event is not None]
        )
        inferences = [
            (arrival, arrival.event)
            for arrival in arrivals
            if isinstance(arrival.event, InferenceRecorded)
        ]
        feedback = [
            (arrival, arrival.event)
            for arrival in arrivals
            if isinstance(arrival.event, FeedbackReported)
        ]
        records = await self._record(inferences, dead) if inferences else {}
        candidates = await self._new_reports(feedback, dead) if feedback else {}
        late = await self.store.expired(list(records)) if records and self.parking.expired else ()
        candidates |= {
            parked.report.event_id: parked for parked in (*late, *self.parking.waiting_for(records))
        }
        if candidates:
            await self._join(list(candidates.values()), records)
        await self._bury(dead)

    async def _record(
        self, arrivals: Sequence[tuple[Arrival, InferenceRecorded]], dead: Dead
    ) -> dict[str, Record]:
        """Give each new exchange its place and its row. Returns all exchanges of the batch, the repeated ones too."""
        self._follow(arrivals)
        known = await self.store.places([event.event_id for _, event in arrivals])
        taken: dict[
            str, tuple[InferenceRecorded, str]
        ] = {}  # in order of arrival, which is that of the turns
        for arrival, event in arrivals:
            digest = hashlib.blake2b(arrival.value, digest_size=16).hexdigest()
            before = (
                known[event.event_id][0]
                if event.event_id in known
                else taken.get(event.event_id, (event, None))[1]
            )
            if before not in (None, digest):
                CONFLICTS.labels(arrival.topic).inc()
                dead.append((arrival, f"conflict: {event.event_id} is known with other content"))
                continue
            if before is not None:
                REPEATS.labels(arrival.topic).inc()
            taken.setdefault(event.event_id, (event, digest))
        shards = {event.event_id: arrival.key or b"" for arrival, event in reversed(arrivals)}
        entries = {
            record_id: await self._entry(event, shards[record_id])
            for record_id, (event, _) in taken.items()
        }
        places, sessions = await self._places(
            entries, {record_id: known[record_id][1] for record_id in taken if record_id in known}
        )
        records = {
            record_id: Record(event, digest, places[record_id])
            for record_id, (event, digest) in taken.items()
        }
        await self.store.insert_records(
            [record for record_id, record in records.items() if record_id not in known]
        )
        await self.store.insert_sessions(sessions)
        if entries:
            self.book.settle(entries, newest=max(entry.at for entry in entries.values()))
        return records

    async def _places(
        self, entries: Mapping[str, Entry], known: Mapping[str, Assignment]
    ) -> tuple[dict[str, Assignment], list[Session]]:
        keys, tails, requests = self.book.missing(
            entry for record_id, entry in entries.items() if record_id not in known
        )
        keys |= {
            (entries[record_id].scenario, place.session_id) for record_id, place in known.items()
        }
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
        """Where offsets are missing another process handled them: its sessions are in the store."""
        for arrival, event in arrivals:
            expected = self._next_offsets.get((arrival.topic, arrival.partition), 0)
            if arrival.offset > expected:
                self.book.forget(event.at)
            self._next_offsets[arrival.topic, arrival.partition] = max(expected, arrival.offset + 1)

    async def _entry(self, event: InferenceRecorded, shard: bytes) -> Entry:
        whole = await self._with_bodies(event)
        # Neither two partitions, between which there is no order, nor two callers share a session.
        apart = shard + event.caller.encode()
        prints = fingerprint(whole.request or {}, whole.response, whole.api, shard=apart)
        return Entry(
            event.event_id, event.scenario, event.at, event.session_tag, prints, event.caller
        )

    async def _with_bodies(self, event: InferenceRecorded) -> InferenceRecorded:
        if event.body_ref is None or event.request is not None:
            return event
        try:
            body = from_json(await self.bodies.read(event.body_ref))
            if not isinstance(body, dict):
                raise Poison(f"the body {event.body_ref.sha256} is not a JSON object")
        # The event is complete without its texts: a sample is made of its tokens alone.
        except (Poison, BodyMissing, ValueError) as error:
            UNRESOLVED.inc()
            log.warning("body_missing", record_id=event.event_id, reason=str(error))
            return event
        return event.model_copy(
            update={"request": body.get("request"), "response": body.get("response")}
        )

    async def _new_reports(
        self, arrivals: Sequence[tuple[Arrival, FeedbackReported]], dead: Dead
    ) -> dict[str, Parked]:
        """The reports that have not had their effect yet."""
        states = await self.store.report_states([report.event_id for _, report in arrivals])
        candidates: dict[str, Parked] = {}
        for arrival, report in arrivals:
            known = states.get(report.event_id)
            digest = known.digest if known is not None else None
            if report.event_id in candidates:
                digest = candidates[report.event_id].report.content_digest
            if (wrong := wrong_references(report.references)) is not None:
                dead.append((arrival, wrong))
            elif digest is not None and digest != report.content_digest:
                CONFLICTS.labels(arrival.topic).inc()
                dead.append(
                    (arrival, f"conflict: report {report.event_id} is known with other content")
                )
            elif (known is not None and known.state == "joined") or report.event_id in candidates:
                REPEATS.labels(arrival.topic).inc()
            elif known is None:
                candidates[report.event_id] = Parked(
                    report, self.now(), arrival.partition, arrival.offset, arrival.key
                )
            else:  # where it lay first stays its place, so that a repeat leaves no trace
                since = known.parked_at if known.state == "parked" else self.now()
                candidates[report.event_id] = Parked(
                    report, since, known.partition, known.offset, arrival.key
                )
        return candidates

    async def _join(
        self, candidates: Sequence[Parked], records: Mapping[str, Record]
    ) -> list[Parked]:
        """Make the samples of those whose records are all known; park the others, and return them."""
        needed = {
            reference for parked in candidates for reference in parked.report.references
        } - records.keys()
        found = {**records, **(await self.store.records(needed) if needed else {})}
        samples: list[SampleReady] = []
        rows: list[ReportRow] = []
        for parked in candidates:
            report = parked.report
            # A record of another scenario counts as unknown: nobody learns that it exists.
            known = [
                found[reference]
                for reference in report.references
                if reference in found and found[reference].event.scenario == report.scenario
            ]
            if len(known) < len(report.references):
                rows.append(self._row(parked, "parked"))
                continue
            whole = [Record(await self._with_bodies(r.event), r.digest, r.place) for r in known]
            made = make_samples(report, whole)
            samples += made
            rows.append(self._row(parked, "joined", made[0].event_id))
        await self._publish(samples)
        await self._mark(rows)
        return [row.parked for row in rows if row.state == "parked"]

    async def _publish(self, samples: Sequence[SampleReady]) -> None:
        if samples:
            await self.store.insert_samples(samples)
            await asyncio.gather(
                *(self.publisher.publish(sample, topics.SAMPLES) for sample in samples)
            )
        for sample in samples:
            SAMPLES.labels(sample.untrainable or "").inc()

    async def _mark(self, rows: Sequence[ReportRow]) -> None:
        new = [
            row
            for row in rows
            if row.state != "parked" or row.parked.report.event_id not in self.parking
        ]
        await self.store.insert_reports(new)
        for row in rows:
            if row.state == "parked":
                self.parking.add(row.parked)
            else:
                self.parking.discard(row.parked.report.event_id)

    async def _expire(self, reports: Iterable[Parked]) -> None:
        for parked in reports:
            missing = ", ".join(parked.report.references)
            reason = f"unknown receipts after {self.report_wait.total_seconds():g} s: {missing}"
            await self.dead.bury(_as_arrival(parked), reason, waited=True)
            await self._mark([self._row(parked, "expired")])
            self.parking.expired = True
            EXPIRED.inc()

    async def _one_by_one(self, arrivals: Sequence[Arrival], error: Poison) -> None:
        """One row of the batch was refused: the others go through, and that one alone is dead."""
        if len(arrivals) == 1:
            await self._bury([(arrivals[0], str(error))])
            return
        for arrival in arrivals:
            try:
                await self._take((arrival,))
            except Poison as own:
                await self._bury([(arrival, str(own))])

    async def _bury(self, dead: Dead) -> None:
        for arrival, reason in dead:
            await self.dead.bury(arrival, reason)

    def _row(self, parked: Parked, state: ReportState, sample_id: str | None = None) -> ReportRow:
        return ReportRow(parked, state, sample_id, version=int(self.now().timestamp() * 1_000_000))

    def session_facts(self) -> dict[str, int]:
        """What `/status` shows of the open sessions."""
        return {
            "open": len(self.book),
            "limit": self.max_open_sessions,
            "evicted": self.book.evicted,
        }

    def waiting_facts(self) -> dict[str, Any] | None:
        """The report that waits longest, for `/status`, with the time when it is given up."""
        parked = self.parking.oldest()
        if parked is None:
            return None
        return {
            "report_id": parked.report.event_id,
            "references": parked.report.references,
            "since": parked.parked_at,
            "given_up_at": parked.parked_at + self.report_wait,
        }

    def _show(self) -> None:
        PARKED.set(len(self.parking))
        OPEN.set(len(self.book))
        EVICTED.set(self.book.evicted)


def _as_arrival(parked: Parked) -> Arrival:
    value = parked.report.model_dump_json(exclude_none=True).encode()
    return Arrival(
        topics.FEEDBACK.name, parked.partition, parked.offset, parked.key, value, parked.report
    )
