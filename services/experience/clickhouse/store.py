"""ExperienceStore on ClickHouse. A row is replaced by a later row with the same key."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from reefcommon.events import Event, SampleReady, Unit
from services.experience.clickhouse import rows
from services.experience.clickhouse.client import Database, Row, as_list
from services.experience.domain.line import CURRENT, Mark
from services.experience.domain.parking import Parked
from services.experience.domain.samples import Record
from services.experience.domain.sessions import Assignment, Key, Session
from services.experience.ports import Known, OpenRun, ReportRow
from services.experience.wants import Period

_IDS, _SCENARIOS, _TAILS, _REQUESTS = (
    f"JSONExtract({{{name}:String}}, 'Array(String)')"
    for name in ("ids", "scenarios", "tails", "requests")
)
_SESSIONS = "SELECT * FROM sessions FINAL WHERE"
_BY_KEY = f"{_SESSIONS} session_id IN {_IDS} AND scenario IN {_SCENARIOS}"
_BY_TAIL = f"{_SESSIONS} NOT tagged AND hasAny(tail_hashes, {_TAILS})"
# Rows of before the trees have no list of requests.
_BY_REQUEST = (
    f"{_SESSIONS} NOT tagged "
    f"AND (hasAny(request_hashes, {_REQUESTS}) OR request_hash IN {_REQUESTS})"
)
_OF_SESSIONS = f"scenario IN {_SCENARIOS} AND session_id IN {_IDS}"
_LATEST = (
    "SELECT scenario, session_id, max(sequence) FROM turns "  # noqa: S608  constants
    f"WHERE {_OF_SESSIONS} GROUP BY scenario, session_id"
)


@dataclass(frozen=True, slots=True)
class ClickHouseStore:
    """ExperienceStore on ClickHouse."""

    database: Database

    async def places(self, record_ids: Sequence[str]) -> Mapping[str, tuple[str, Assignment]]:
        columns = "record_id, digest, session_id, session_turn, session_sequence, retry_of"
        found = await self._by_ids(columns, "records", "record_id", record_ids)
        return {row["record_id"]: (row["digest"], rows.assignment(row)) for row in found}

    async def records(self, record_ids: Iterable[str]) -> Mapping[str, Record]:
        found = await self._by_ids("*", "records", "record_id", record_ids)
        return {row["record_id"]: rows.record(row) for row in found}

    async def insert_records(self, records: Sequence[Record]) -> None:
        await self._insert("records", rows.RECORDS, records)

    async def sessions(
        self, keys: Iterable[Key], tails: Iterable[Key], requests: Iterable[Key] = ()
    ) -> Sequence[Session]:
        wanted_keys, wanted_tails, wanted_requests = set(keys), set(tails), set(requests)
        parts = {_BY_KEY: wanted_keys, _BY_TAIL: wanted_tails, _BY_REQUEST: wanted_requests}
        found = await self.database.query(
            " UNION ALL ".join(part for part, wanted in parts.items() if wanted) or _BY_KEY,
            ids=as_list(session_id for _, session_id in wanted_keys),
            scenarios=as_list({scenario for scenario, _ in wanted_keys}),
            tails=as_list(tail for _, tail in wanted_tails),
            requests=as_list(request for _, request in wanted_requests),
        )
        sessions = {session.key: session for session in map(rows.session, found)}
        return [
            session
            for session in sorted(sessions.values(), key=lambda session: session.last_at)
            if session.key in wanted_keys
            or any((session.scenario, hash_) in wanted_requests for hash_ in session.request_hashes)
            or any((session.scenario, tail) in wanted_tails for tail in session.tail_hashes)
        ]

    async def recent_sessions(self, *, within_s: float, limit: int) -> Sequence[Session]:
        found = await self.database.query(
            "SELECT * FROM sessions FINAL WHERE last_at >= "
            "(SELECT max(last_at) FROM sessions) - toIntervalMicrosecond({within:Int64}) "
            "ORDER BY last_at DESC, session_id LIMIT {limit:UInt64}",
            within=int(within_s * 1_000_000),
            limit=limit,
        )
        return [rows.session(row) for row in reversed(found)]

    async def insert_sessions(self, sessions: Sequence[Session]) -> None:
        await self._insert("sessions", rows.SESSIONS, sessions)

    async def marks(self, keys: Iterable[Key]) -> Mapping[Key, Sequence[Mark]]:
        wanted = set(keys)
        found = await self.database.select(
            "*",
            "turns",
            f"{_OF_SESSIONS} AND (state IN {{states:Array(String)}} "
            f"OR (scenario, session_id, sequence) IN ({_LATEST})) ORDER BY sequence",
            scenarios=as_list({scenario for scenario, _ in wanted}),
            ids=as_list(session_id for _, session_id in wanted),
            states=list(CURRENT),
        )
        marks: dict[Key, list[Mark]] = {key: [] for key in wanted}
        for row in found:
            if (key := (row["scenario"], row["session_id"])) in wanted:
                marks[key].append(rows.mark(row))
        return marks

    async def open_runs(self) -> Sequence[OpenRun]:
        found = await self.database.query(
            "SELECT scenario, session_id, max(at) AS last_at, any(log_partition) AS place "
            "FROM turns FINAL WHERE state = 'open' GROUP BY scenario, session_id ORDER BY last_at"
        )
        return [
            OpenRun((row["scenario"], row["session_id"]), row["last_at"], row["place"])
            for row in found
        ]

    async def insert_marks(self, marks: Sequence[tuple[Key, Mark]]) -> None:
        await self._insert("turns", rows.TURNS, marks)

    async def has_records(self) -> bool:
        return bool(await self.database.query("SELECT 1 AS n FROM records LIMIT 1"))

    async def periods(self) -> Sequence[Period]:
        found = await self.database.query("SELECT * FROM periods FINAL ORDER BY since")
        return [Period(**row) for row in found]

    async def insert_periods(self, periods: Sequence[Period]) -> None:
        await self._insert("periods", rows.PERIODS, periods)

    async def insert_units(self, units: Sequence[Unit]) -> None:
        await self._insert("units", rows.UNITS, units)

    async def report_states(self, report_ids: Sequence[str]) -> Mapping[str, Known]:
        names = ("digest", "state", "parked_at", "log_partition", "log_offset")
        columns = ", ".join(("report_id", *names))
        found = await self._by_ids(columns, "reports", "report_id", report_ids)
        return {row["report_id"]: Known(*(row[name] for name in names)) for row in found}

    async def parked(self, *, after: str, limit: int) -> Sequence[Parked]:
        # The inner query finds the rows that were ever parked by their index; only those few are
        # then read in their latest state.
        found = await self.database.query(
            "SELECT * FROM reports FINAL WHERE state = 'parked' AND report_id IN "
            "(SELECT report_id FROM reports WHERE state = 'parked' AND report_id > {after:String}) "
            "ORDER BY report_id LIMIT {limit:UInt64}",
            after=after,
            limit=limit,
        )
        return [rows.parked(row) for row in found]

    async def has_expired(self) -> bool:
        sql = "SELECT 1 AS n FROM reports WHERE state = 'expired' LIMIT 1"
        return bool(await self.database.query(sql))

    async def expired(self, record_ids: Sequence[str]) -> Sequence[Parked]:
        once = f"state = 'expired' AND hasAny(references, {_IDS})"
        ids = f"SELECT report_id FROM reports WHERE {once}"  # noqa: S608  constants; ids are bound
        expired = f"state = 'expired' AND report_id IN ({ids}) ORDER BY report_id"
        found = await self.database.select("*", "reports", expired, ids=as_list(record_ids))
        return [rows.parked(row) for row in found]

    async def insert_samples(self, samples: Sequence[SampleReady]) -> None:
        await self._insert("samples", rows.SAMPLES, samples)

    async def insert_reports(self, reports: Sequence[ReportRow]) -> None:
        await self._insert("reports", rows.REPORTS, reports)

    async def insert_outcomes(self, events: Sequence[Event]) -> None:
        for table, columns in dict(rows.OUTCOMES.values()).items():
            kinds = tuple(kind for kind, (other, _) in rows.OUTCOMES.items() if other == table)
            await self._insert(table, columns, [e for e in events if isinstance(e, kinds)])

    async def _by_ids(self, columns: str, table: str, key: str, ids: Iterable[str]) -> list[Row]:
        return await self.database.select(columns, table, f"{key} IN {_IDS}", ids=as_list(ids))

    async def _insert(self, table: str, columns: rows.Columns, items: Sequence[Any]) -> None:
        if items:
            await self.database.insert(
                table, list(columns), [[read(item) for item in items] for read in columns.values()]
            )
