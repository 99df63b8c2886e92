"""Reads for the gateway and the command line, as JSON-ready values."""

# Lists are newest first and have no bodies and no tokens.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reefcommon.errors import Poison
from reefcommon.evaluation import HELD_OUT
from reefcommon.events import Event
from services.experience.clickhouse import rows
from services.experience.clickhouse.client import Database, Row
from services.experience.ports import Page, UnknownCursor


@dataclass(frozen=True, slots=True)
class Table:
    """A table that can be listed. `filters`: the condition of each query parameter."""

    key: str
    columns: str = "*"
    at: str = "at"
    filters: Mapping[str, str] = field(default_factory=dict)


_LISTS = {
    "records": Table(
        "record_id",
        "record_id, scenario, at, outcome, api, session_id, session_turn, retry_of, release_id, "
        "load_id, model, engine, status, stream, first_token_ms, duration_ms, usage, error, "
        "length(prompt_token_ids) AS prompt_tokens, "
        "arraySum(ids -> length(ids), completion_token_ids) AS completion_tokens",
        filters={
            "session": "session_id = {session:String}",
            "outcome": "outcome = {outcome:String}",
        },
    ),
    "sessions": Table(
        "session_id",
        "session_id, scenario, tagged, turns, sequence AS records, first_at, last_at AS at, "
        "turn_record_id AS last_turn_record_id",
        at="last_at",
    ),
    "samples": Table(
        "sample_id",
        "sample_id, scenario, at, recorded_at, record_ids, report_id, session_id, release_id, "
        "load_id, score, feedback, metadata, temperature, untrainable, length(tokens) AS tokens, "
        "prompt_length, arraySum(loss_mask) AS trained_tokens",
        filters={"trainable": "isNull(untrainable) = {trainable:Bool}"},
    ),
    "units": Table(
        "unit_id",
        "unit_id, kind, scenario, at, recorded_at, record_ids, session_id, ended, part, parts, "
        "release_id, load_id, metadata, temperature, untrainable, length(tokens) AS tokens, "
        "prompt_length, arraySum(loss_mask) AS trained_tokens, next_messages",
        filters={"kind": "kind = {kind:String}"},
    ),
    "signals": Table(
        "signal_id",
        "signal_id, scenario, at, recipe, unit_id, abstained, score, weight, words, labels, "
        "length(logprobs) AS scored_tokens, calls, tokens",
        filters={"unit": "unit_id = {unit:String}"},
    ),
    "steps": Table("job_id"),
}
_KEY = (
    "'inference' AS kind, idempotency_digest AS digest, scenario, outcome, status, stream, api, "
    "release_id, response, error, body_ref"
)
_OF = "FINAL WHERE scenario = {s:String}"
_TOTALS = (
    f"SELECT (SELECT count() FROM sessions {_OF}) AS sessions, "  # noqa: S608  a constant
    f"(SELECT count() FROM steps {_OF}) AS steps, "
    f"(SELECT sum(length(prompt_token_ids)) FROM records {_OF}) AS prompt_tokens, "
    "(SELECT sum(arraySum(ids -> length(ids), completion_token_ids)) "
    f"FROM records {_OF}) AS completion_tokens, "
    f"(SELECT avgOrNull(score) FROM reports {_OF} AND state = 'joined') AS mean_score"
)
_COUNTED = {
    "records": "outcome",
    "reports": "state",
    "samples": "ifNull(untrainable, 'trainable')",
    "refusals": "reason",
    "releases": "state",
}
_JSON_COLUMNS = ("usage", "feedback", "metadata", "metrics", "next_messages", "labels")


@dataclass(frozen=True, slots=True)
class ClickHouseReads:
    """Reads for clients. Raise Unavailable."""

    database: Database

    async def record(self, record_id: str) -> Row | None:
        """Return the exchange or report under a receipt (`record`), with its reports, samples,
        units, signals and refusals; None if unknown.
        """
        select = self.database.select
        found = await select("*", "records", "record_id = {id:String}", id=record_id)
        mine = "has(references, {id:String}) OR report_id = {id:String} ORDER BY report_id"
        reports = await select("*", "reports", mine, id=record_id)
        own = [row for row in reports if row["report_id"] == record_id]
        if not found and not own:
            return None
        mine = "has(record_ids, {id:String}) OR report_id = {id:String} ORDER BY sample_id"
        samples = await select(_LISTS["samples"].columns, "samples", mine, id=record_id)
        mine = "has(record_ids, {id:String}) ORDER BY kind, unit_id"
        units = await select(_LISTS["units"].columns, "units", mine, id=record_id)
        ids = [row["sample_id"] for row in samples] + [row["unit_id"] for row in units]
        of_units = "unit_id IN {ids:Array(String)} ORDER BY at, signal_id"
        signals = await select(_LISTS["signals"].columns, "signals", of_units, ids=ids)
        of_samples = "sample_id IN {ids:Array(String)} ORDER BY at, refusal_id"
        refusals = await select("*", "refusals", of_samples, ids=ids)
        event: Event = rows.record(found[0]).event if found else rows.parked(own[0]).report
        place = found[0] if found else {}
        return {
            "record": event.model_dump(),
            **{name: place.get(name) for name in ("session_id", "session_turn", "retry_of")},
            "reports": _decoded(reports),
            "samples": _decoded(samples),
            "units": _decoded(units),
            "signals": _decoded(signals),
            "refusals": [_worded(row) for row in refusals],
        }

    async def keys(self, keys: Sequence[str]) -> dict[str, Row]:
        """Return by key an exchange with its answer, or a report, each with its digest."""
        select, asked = self.database.select, list(keys)
        mine = "record_id IN {ids:Array(String)}"
        found = await select(f"record_id AS id, {_KEY}", "records", mine, ids=asked)
        for row in found:
            texts = {name: rows.load(row[name]) for name in ("response", "body_ref")}
            row.update(texts, stream=bool(row["stream"]))
        columns, mine = "report_id AS id, 'report' AS kind, digest, scenario", "report_id IN"
        reports = await select(columns, "reports", f"{mine} {{ids:Array(String)}}", ids=asked)
        return {row.pop("id"): row for row in (*reports, *found)}

    async def summary(self, scenario: str) -> Row:
        counts: Row = {"scenario": scenario}
        for table, column in _COUNTED.items():
            found = await self.database.query(
                f"SELECT {column} AS kind, count() AS n FROM {table} "  # noqa: S608  constants
                f"{_OF} GROUP BY kind ORDER BY kind",
                s=scenario,
            )
            counts[table] = {row["kind"]: row["n"] for row in found}
        totals = await self.database.query(_TOTALS, s=scenario)
        return {**counts, **totals[0]}

    async def page(
        self, name: str, scenario: str, *, limit: int, cursor: str | None = None, **filters: Any
    ) -> Page:
        """Return a page of a list, newest first, without bodies and tokens.

        Filters that are None or unknown to the list are ignored. Raises Poison if there is no such
        list, and UnknownCursor.
        """
        if name not in _LISTS:
            raise Poison(f"no list {name!r}; there are {', '.join(_LISTS)}")
        table = _LISTS[name]
        asked = {k: v for k, v in filters.items() if k in table.filters and v is not None}
        tests = [table.filters[asked_for] for asked_for in asked]
        # S608 in this method: names and conditions are constants; values are bound.
        latest = (
            f"SELECT {table.at}, {table.key} FROM {name} {_OF} "  # noqa: S608
            f"AND {table.key} = {{cursor:String}}"
        )
        if cursor is not None:
            tests.append(f"({table.at}, {table.key}) < ({latest})")
        also = "".join(f" AND {test}" for test in tests)
        found = await self.database.query(
            f"SELECT {table.columns} FROM {name} {_OF}{also} "  # noqa: S608
            f"ORDER BY {name}.{table.at} DESC, {table.key} DESC LIMIT {{limit:UInt64}}",
            s=scenario,
            limit=limit,
            cursor=cursor or "",
            **asked,
        )
        # An empty page has a known cursor, or the list would seem to end there.
        if found or cursor is None or await self.database.query(latest, s=scenario, cursor=cursor):
            last = found[-1][table.key] if len(found) == limit else None
            return {"data": _decoded(found), "next_cursor": last}
        unknown = f"there is no {table.key} {cursor!r} in scenario {scenario!r}"
        raise UnknownCursor(f"{unknown} to go on from")


def _decoded(found: list[Row]) -> list[Row]:
    return [row | {k: rows.load(row[k]) for k in _JSON_COLUMNS if k in row} for row in found]


def _worded(refusal: Row) -> Row:
    # A sample that is held out is not refused: candidates will be judged by it.
    if refusal["reason"] != HELD_OUT:
        return {**refusal, "kept_for_evaluation": False}
    reason = f"{HELD_OUT}: kept for evaluation, which judges candidates by it"
    return {**refusal, "reason": reason, "kept_for_evaluation": True}
