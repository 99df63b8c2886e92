"""Reads for the gateway and the command line, as JSON-ready values.

Lists are newest first and have no bodies and no tokens.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reefcommon.evaluation import HELD_OUT
from reefcommon.events import Event
from services.experience.clickhouse import rows
from services.experience.clickhouse.client import Database, Row
from services.experience.ports import UnknownCursor

_RECORD_LIST = (
    "record_id, scenario, at, outcome, api, session_id, session_turn, retry_of, release_id, "
    "load_id, model, engine, status, stream, "
    "first_token_ms, duration_ms, usage, error, length(prompt_token_ids) AS prompt_tokens, "
    "arraySum(ids -> length(ids), completion_token_ids) AS completion_tokens"
)
_SAMPLE_LIST = (
    "sample_id, scenario, at, recorded_at, record_ids, report_id, session_id, release_id, "
    "load_id, score, feedback, metadata, temperature, "
    "untrainable, length(tokens) AS tokens, prompt_length, arraySum(loss_mask) AS trained_tokens"
)
_KEY = (
    "'inference' AS kind, idempotency_digest AS digest, scenario, outcome, status, stream, api, "
    "release_id, response, error, body_ref"
)
_OF = "FINAL WHERE scenario = {s:String}"
_TOTALS = (
    f"SELECT (SELECT count() FROM sessions {_OF}) AS sessions, "
    f"(SELECT count() FROM steps {_OF}) AS steps, "
    f"(SELECT sum(length(prompt_token_ids)) FROM records {_OF}) AS prompt_tokens, "
    "(SELECT sum(arraySum(ids -> length(ids), completion_token_ids)) "
    f"FROM records {_OF}) AS completion_tokens, "
    f"(SELECT avgOrNull(score) FROM reports {_OF} AND state = 'joined') AS mean_score"
)
_JSON_COLUMNS = ("usage", "feedback", "metadata", "metrics")


@dataclass(frozen=True, slots=True)
class ClickHouseReads:
    """ExperienceReads and KeyReads on ClickHouse. Raise Unavailable."""

    database: Database

    async def record(self, record_id: str) -> dict[str, Any] | None:
        """Return the exchange or report under a receipt (`record`), with its reports, samples and
        refusals; None if the receipt is unknown.
        """
        found = await self.database.query(
            "SELECT * FROM records FINAL WHERE record_id = {id:String}", id=record_id
        )
        reports = await self._list(
            "SELECT * FROM reports FINAL "
            "WHERE has(references, {id:String}) OR report_id = {id:String} ORDER BY report_id",
            id=record_id,
        )
        if not found and not any(row["report_id"] == record_id for row in reports):
            return None
        of_it = "has(record_ids, {id:String}) OR report_id = {id:String}"
        samples = await self._list(
            f"SELECT {_SAMPLE_LIST} FROM samples FINAL WHERE {of_it} ORDER BY sample_id",
            id=record_id,
        )
        refusals = await self._list(
            "SELECT * FROM refusals FINAL "
            "WHERE sample_id IN {ids:Array(String)} ORDER BY at, refusal_id",
            ids=[sample["sample_id"] for sample in samples],
        )
        about = {
            "reports": reports,
            "samples": samples,
            "refusals": [_worded(row) for row in refusals],
        }
        place = {"session_id": None, "session_turn": None, "retry_of": None}
        if found:
            event: Event = rows.record(found[0]).event
            place = {name: found[0][name] for name in place}
        else:
            (own,) = await self.database.query(
                "SELECT * FROM reports FINAL WHERE report_id = {id:String}", id=record_id
            )
            event = rows.parked(own).report
        return {"record": event.model_dump(), **place, **about}

    async def key(self, key: str) -> dict[str, Any] | None:
        found = await self.database.query(
            f"SELECT {_KEY} FROM records FINAL WHERE record_id = {{id:String}}", id=key
        )
        if found:
            return {
                **found[0],
                "stream": bool(found[0]["stream"]),
                **{name: rows.load(found[0][name]) for name in ("response", "body_ref")},
            }
        reports = await self.database.query(
            "SELECT 'report' AS kind, digest, scenario FROM reports FINAL "
            "WHERE report_id = {id:String}",
            id=key,
        )
        return reports[0] if reports else None

    async def records(
        self,
        scenario: str,
        *,
        session: str | None,
        outcome: str | None,
        limit: int,
        cursor: str | None,
    ) -> list[Row]:
        return await self._page(
            "records",
            "record_id",
            _RECORD_LIST,
            scenario,
            limit,
            cursor,
            {"session_id": session, "outcome": outcome},
        )

    async def sessions(self, scenario: str, *, limit: int, cursor: str | None) -> list[Row]:
        columns = (
            "session_id, scenario, tagged, turns, sequence AS records, first_at, last_at AS at, "
            "turn_record_id AS last_turn_record_id"
        )
        return await self._page(
            "sessions", "session_id", columns, scenario, limit, cursor, {}, at="last_at"
        )

    async def samples(
        self, scenario: str, *, trainable: bool | None, limit: int, cursor: str | None
    ) -> list[Row]:
        condition = {
            None: "",
            True: "AND untrainable IS NULL",
            False: "AND untrainable IS NOT NULL",
        }[trainable]
        return await self._page(
            "samples", "sample_id", _SAMPLE_LIST, scenario, limit, cursor, {}, condition=condition
        )

    async def steps(self, scenario: str, *, limit: int, cursor: str | None) -> list[Row]:
        return await self._page("steps", "job_id", "*", scenario, limit, cursor, {})

    async def summary(self, scenario: str) -> dict[str, Any]:
        counts: dict[str, Any] = {"scenario": scenario}
        for name, table, column in (
            ("records", "records", "outcome"),
            ("reports", "reports", "state"),
            ("samples", "samples", "ifNull(untrainable, 'trainable')"),
            ("refusals", "refusals", "reason"),
            ("releases", "releases", "state"),
        ):
            found = await self.database.query(
                f"SELECT {column} AS kind, count() AS n FROM {table} FINAL "
                "WHERE scenario = {s:String} GROUP BY kind ORDER BY kind",
                s=scenario,
            )
            counts[name] = {row["kind"]: row["n"] for row in found}
        totals = await self.database.query(_TOTALS, s=scenario)
        return {**counts, **totals[0]}

    async def _page(
        self,
        table: str,
        key: str,
        columns: str,
        scenario: str,
        limit: int,
        cursor: str | None,
        equal: Mapping[str, str | None],
        *,
        condition: str = "",
        at: str = "at",
    ) -> list[Row]:
        # `table`, `key`, `columns`, `condition` and `at` are constants of this module.
        wanted = {name: value for name, value in equal.items() if value is not None}
        tests = "".join(f" AND {name} = {{{name}:String}}" for name in wanted)
        if cursor is not None:
            latest = (
                f"SELECT {at}, {key} FROM {table} FINAL "
                f"WHERE {key} = {{cursor:String}} AND scenario = {{s:String}}"
            )
            tests += f" AND ({at}, {key}) < ({latest})"
        sql = (
            f"SELECT {columns} FROM {table} FINAL WHERE scenario = {{s:String}}{tests} {condition} "
            f"ORDER BY {table}.{at} DESC, {key} DESC LIMIT {{limit:UInt64}}"
        )
        found = await self._list(sql, s=scenario, limit=limit, cursor=cursor or "", **wanted)
        if (
            cursor is not None
            and not found
            and not await self.database.query(latest, s=scenario, cursor=cursor)
        ):
            raise UnknownCursor(
                f"there is no {key} {cursor!r} in scenario {scenario!r} to go on from"
            )
        return found

    async def _list(self, sql: str, **parameters: Any) -> list[Row]:
        found = await self.database.query(sql, **parameters)
        return [
            {
                name: rows.load(value) if name in _JSON_COLUMNS else value
                for name, value in row.items()
            }
            for row in found
        ]


def _worded(refusal: Row) -> Row:
    # A sample that is held out is not refused: candidates will be judged by it.
    held_out = refusal["reason"] == HELD_OUT
    words = (
        {"reason": f"{HELD_OUT}: kept for evaluation, which judges candidates by it"}
        if held_out
        else {}
    )
    return {**refusal, **words, "kept_for_evaluation": held_out}
