"""ExperienceStore in memory: of two rows with one key the later state counts."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from reefcommon.events import Event, SampleReady, Unit
from services.experience.domain.line import CURRENT, Mark
from services.experience.domain.parking import Parked
from services.experience.domain.samples import Record
from services.experience.domain.sessions import Assignment, Key, Session
from services.experience.ports import Known, OpenRun, ReportRow
from services.experience.wants import Period


class MemoryExperienceStore:
    """Rows by their keys."""

    def __init__(self) -> None:
        self.record_rows: dict[str, Record] = {}
        self.session_rows: dict[Key, Session] = {}
        self.report_rows: dict[str, ReportRow] = {}
        self.sample_rows: dict[str, SampleReady] = {}
        self.outcomes: dict[str, Event] = {}
        self.mark_rows: dict[tuple[Key, str], Mark] = {}
        self.unit_rows: dict[str, Unit] = {}
        self.period_rows: dict[tuple[str, str, datetime], Period] = {}

    async def places(self, record_ids: Sequence[str]) -> Mapping[str, tuple[str, Assignment]]:
        found = await self.records(record_ids)
        return {record_id: (record.digest, record.place) for record_id, record in found.items()}

    async def records(self, record_ids: Iterable[str]) -> Mapping[str, Record]:
        return {name: self.record_rows[name] for name in record_ids if name in self.record_rows}

    async def insert_records(self, records: Sequence[Record]) -> None:
        self.record_rows |= {record.event.event_id: record for record in records}

    async def sessions(
        self, keys: Iterable[Key], tails: Iterable[Key], requests: Iterable[Key] = ()
    ) -> Sequence[Session]:
        keys, tails, requests = set(keys), set(tails), set(requests)
        return [
            session
            for session in self._by_time()
            if session.key in keys
            or (
                not session.tagged
                and (
                    any((session.scenario, sent) in requests for sent in session.request_hashes)
                    or any((session.scenario, tail) in tails for tail in session.tail_hashes)
                )
            )
        ]

    async def recent_sessions(self, *, within_s: float, limit: int) -> Sequence[Session]:
        sessions = self._by_time()
        if not sessions:
            return []
        oldest = sessions[-1].last_at - timedelta(seconds=within_s)
        return [session for session in sessions if session.last_at >= oldest][-limit:]

    async def insert_sessions(self, sessions: Sequence[Session]) -> None:
        for session in sessions:
            known = self.session_rows.get(session.key)
            if known is None or known.sequence <= session.sequence:
                self.session_rows[session.key] = session

    async def marks(self, keys: Iterable[Key]) -> Mapping[Key, Sequence[Mark]]:
        found: dict[Key, list[Mark]] = {key: [] for key in keys}
        for (key, _), mark in self.mark_rows.items():
            if key in found:
                found[key].append(mark)
        latest = {key: max((m.sequence for m in own), default=0) for key, own in found.items()}
        return {
            key: [mark for mark in own if mark.state in CURRENT or mark.sequence == latest[key]]
            for key, own in found.items()
        }

    async def open_runs(self) -> Sequence[OpenRun]:
        runs: dict[Key, OpenRun] = {}
        for (key, _), mark in self.mark_rows.items():
            if mark.state == "open":
                at = max(mark.at, runs[key].last_at) if key in runs else mark.at
                runs[key] = OpenRun(key, at, mark.partition)
        return sorted(runs.values(), key=lambda run: run.last_at)

    async def insert_marks(self, marks: Sequence[tuple[Key, Mark]]) -> None:
        late = {"open": 0, "passed": 1}
        for key, mark in marks:
            known = self.mark_rows.get((key, mark.record_id))
            if known is None or late.get(known.state, 2) <= late.get(mark.state, 2):
                self.mark_rows[key, mark.record_id] = mark

    async def has_records(self) -> bool:
        return bool(self.record_rows)

    async def periods(self) -> Sequence[Period]:
        return sorted(self.period_rows.values(), key=lambda row: row.since)

    async def insert_periods(self, periods: Sequence[Period]) -> None:
        self.period_rows |= {(row.scenario, row.kind, row.since): row for row in periods}

    async def insert_units(self, units: Sequence[Unit]) -> None:
        self.unit_rows |= {unit.event_id: unit for unit in units}

    async def report_states(self, report_ids: Sequence[str]) -> Mapping[str, Known]:
        found = {name: self.report_rows[name] for name in report_ids if name in self.report_rows}
        return {
            name: Known(
                row.parked.report.content_digest,
                row.state,
                row.parked.parked_at,
                row.parked.partition,
                row.parked.offset,
            )
            for name, row in found.items()
        }

    async def parked(self, *, after: str, limit: int) -> Sequence[Parked]:
        rows = sorted(self.report_rows.items())
        waiting = [row.parked for name, row in rows if row.state == "parked" and name > after]
        return waiting[:limit]

    async def has_expired(self) -> bool:
        return any(row.state == "expired" for row in self.report_rows.values())

    async def expired(self, record_ids: Sequence[str]) -> Sequence[Parked]:
        return [
            row.parked
            for _, row in sorted(self.report_rows.items())
            if row.state == "expired" and set(row.parked.report.references) & set(record_ids)
        ]

    async def insert_samples(self, samples: Sequence[SampleReady]) -> None:
        self.sample_rows |= {sample.event_id: sample for sample in samples}

    async def insert_reports(self, rows: Sequence[ReportRow]) -> None:
        for row in rows:
            name = row.parked.report.event_id
            known = self.report_rows.get(name)
            if known is None or known.version <= row.version:
                self.report_rows[name] = row

    async def insert_outcomes(self, events: Sequence[Event]) -> None:
        self.outcomes |= {event.event_id: event for event in events}

    def _by_time(self) -> list[Session]:
        return sorted(self.session_rows.values(), key=lambda session: session.last_at)
