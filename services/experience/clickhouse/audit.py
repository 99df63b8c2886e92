"""Digests of ranges of rows, and single rows, for the comparison of two stores."""

# A range is compared by its digest, so two large stores are compared without copying them.

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from reefcommon.errors import Poison
from services.experience.clickhouse.client import Database
from services.experience.ports import Bound, RowDigests, RowKey, Slice

KEYS: Mapping[str, tuple[str, ...]] = {
    "records": ("record_id",),
    "reports": ("report_id",),
    "samples": ("sample_id",),
    "units": ("unit_id",),
    "signals": ("signal_id",),
    "sessions": ("scenario", "session_id"),
    "steps": ("job_id",),
    "refusals": ("refusal_id",),
    "releases": ("event_id", "state"),
    "servings": ("event_id",),
}
# Columns that a second reading of the log cannot give again, each with the reason.
IGNORED: Mapping[str, Mapping[str, str]] = {
    "reports": {
        "parked_at": "when this machine first took the report",
        "version": "when this machine wrote the row",
    }
}


@dataclass(frozen=True, slots=True)
class ClickHouseAudit:
    """Audit on ClickHouse. Keys are lists of texts, in the order of the table's own key."""

    database: Database
    _columns: dict[str, tuple[str, ...]] = field(default_factory=dict)

    async def columns(self, table: str) -> tuple[str, ...]:
        """Return the compared columns of a table. Raises Poison if it does not exist."""
        if table not in KEYS:
            raise Poison(f"no table {table!r}; there are {', '.join(KEYS)}")
        if table not in self._columns:
            found = await self.database.query(
                "SELECT name FROM system.columns WHERE database = currentDatabase() "
                "AND table = {table:String} ORDER BY position",
                table=table,
            )
            self._columns[table] = tuple(
                row["name"] for row in found if row["name"] not in IGNORED.get(table, {})
            )
        return self._columns[table]

    async def page(self, table: str, *, after: Bound, limit: int) -> Slice:
        found = await self._slice(table, after, None, f"ORDER BY key LIMIT {int(limit)}")
        return found if found.count == limit else Slice(found.count, found.digest, None)

    async def span(self, table: str, *, after: Bound, until: Bound) -> Slice:
        return await self._slice(table, after, until, "")

    async def rows(self, table: str, *, after: Bound, until: Bound) -> RowDigests:
        await self.columns(table)
        where, values = _range(table, after, until)
        return await self._digests(table, where, values)

    async def picked(self, table: str, keys: Sequence[RowKey]) -> RowDigests:
        await self.columns(table)
        names = KEYS[table]
        parts = ", ".join("String" for _ in names)
        where = f"tuple({_texts(names)}) IN {{keys:Array(Tuple({parts}))}}"
        return await self._digests(table, where, {"keys": [tuple(key) for key in keys]})

    async def row(self, table: str, key: RowKey) -> dict[str, str] | None:
        columns = await self.columns(table)
        texts = ", ".join(f"toString(tuple({name})) AS {name}" for name in columns)
        values = {f"k{number}": value for number, value in enumerate(key)}
        tests = " AND ".join(
            f"{table}.{name} = {{k{number}:String}}" for number, name in enumerate(KEYS[table])
        )
        found = await self.database.query(
            f"SELECT {texts} FROM {table} FINAL "  # noqa: S608  `columns` has checked the table
            f"WHERE {tests} LIMIT 1",
            **values,
        )
        return {name: str(text)[1:-1] for name, text in found[0].items()} if found else None

    async def _slice(self, table: str, after: Bound, until: Bound, limit: str) -> Slice:
        hashed = _hashed(table, await self.columns(table))
        where, values = _range(table, after, until)
        (row,) = await self.database.query(
            "SELECT count() AS rows, max(key) AS last, "  # noqa: S608  the table is checked
            "toString(groupBitXor(reinterpretAsUInt128(digest))) AS digest "
            f"FROM (SELECT {hashed} FROM {table} FINAL WHERE {where} {limit})",
            **values,
        )
        return Slice(row["rows"], row["digest"], tuple(row["last"]) if row["rows"] else None)

    async def _digests(self, table: str, where: str, values: Mapping[str, Any]) -> RowDigests:
        hashed = _hashed(table, await self.columns(table))
        found = await self.database.query(
            "SELECT key, lower(hex(digest)) AS digest "  # noqa: S608  the table is checked
            f"FROM (SELECT {hashed} FROM {table} FINAL WHERE {where}) ORDER BY key",
            **values,
        )
        return [(tuple(row["key"]), row["digest"]) for row in found]


def _texts(names: Sequence[str]) -> str:
    return ", ".join(f"toString({name})" for name in names)


def _hashed(table: str, columns: Sequence[str]) -> str:
    row = f"toString(tuple({', '.join(columns)}))"
    return f"tuple({_texts(KEYS[table])}) AS key, sipHash128({row}) AS digest"


def _range(table: str, after: Bound, until: Bound) -> tuple[str, dict[str, str]]:
    names = KEYS[table]
    tests = ["1"]
    values: dict[str, str] = {}
    for word, sign, key in (("after", ">", after), ("until", "<=", until)):
        if key is None:
            continue
        values |= {f"{word}{number}": value for number, value in enumerate(key)}
        wanted = ", ".join(f"{{{word}{number}:String}}" for number in range(len(names)))
        # A comparison of tuples, which the index of the table's key can serve.
        tests.append(f"({', '.join(names)}) {sign} ({wanted})")
    return " AND ".join(tests), values
