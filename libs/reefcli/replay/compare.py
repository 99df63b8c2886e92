"""The differences between the running store and the store that was read from the log.

Ranges of rows are compared by digests. Rows that differ are suspects; a suspect counts if it still
differs when both sides have handled the same log.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import httpx

from reefcommon.errors import Unavailable
from services.experience.clickhouse.audit import KEYS
from services.experience.ports import Audit, RowDigests, RowKey, Slice

# A digest of this many rows takes milliseconds, and their keys fit into a message.
PAGE_ROWS = 10_000
# Keys a request.
PICKED = 500
Row = tuple[str, ...]
Kind = Literal["missing", "extra", "differs"]
"""missing: not in the running store; extra: there, and not in the log; differs: other content."""


@dataclass(frozen=True, slots=True)
class RunningStore:
    """Audit over the experience service's HTTP."""

    http: httpx.AsyncClient

    async def page(self, table: str, *, after: RowKey | None, limit: int) -> Slice:
        found = await self._ask(f"/audit/{table}/page?limit={limit}", {"after": after})
        return _slice(found)

    async def span(self, table: str, *, after: RowKey | None, until: RowKey | None) -> Slice:
        found = await self._ask(f"/audit/{table}/span", {"after": after, "until": until})
        return _slice(found)

    async def rows(self, table: str, *, after: RowKey | None, until: RowKey | None) -> RowDigests:
        return _digests(await self._ask(f"/audit/{table}/rows", {"after": after, "until": until}))

    async def picked(self, table: str, keys: Sequence[RowKey]) -> RowDigests:
        return _digests(await self._ask(f"/audit/{table}/picked", {"keys": list(keys)}))

    async def row(self, table: str, key: RowKey) -> dict[str, str] | None:
        found: dict[str, str] | None = await self._ask(f"/audit/{table}/row", list(key))
        return found

    async def _ask(self, path: str, body: object) -> Any:
        try:
            response = await self.http.post(path, json=body)
            response.raise_for_status()
        except httpx.HTTPError as error:
            raise Unavailable(
                f"the experience service at {self.http.base_url} does not answer: {error!r}"
            ) from error
        return response.json()


def _slice(found: Any) -> Slice:
    until = found["until"]
    return Slice(found["count"], found["digest"], None if until is None else tuple(until))


def _digests(found: list[tuple[list[str], str]]) -> RowDigests:
    return [(tuple(key), digest) for key, digest in found]


@dataclass(slots=True)
class Comparison:
    """The two stores. `suspects`: by table, the rows that differed in the last comparison."""

    running: Audit
    replayed: Audit
    rows: Counter[str] = field(default_factory=Counter)
    suspects: dict[str, dict[Row, Kind]] = field(default_factory=dict)

    async def whole(self) -> None:
        for table in KEYS:
            self.suspects[table] = {}
            after: RowKey | None = None
            while True:
                page = await self.running.page(table, after=after, limit=PAGE_ROWS)
                await self._page(table, after, page)
                after = page.until
                if after is None:
                    break

    async def _page(self, table: str, after: RowKey | None, page: Slice) -> None:
        span = await self.replayed.span(table, after=after, until=page.until)
        self.rows[table] += span.count
        if (span.count, span.digest) == (page.count, page.digest):
            return
        theirs = await self.running.rows(table, after=after, until=page.until)
        mine = await self.replayed.rows(table, after=after, until=page.until)
        self.suspects[table] |= _compared(dict(theirs), dict(mine))

    async def again(self) -> None:
        for table, rows in self.suspects.items():
            still: dict[Row, Kind] = {}
            keys = list(rows)
            # A request has a bounded size, however many suspects there are.
            for start in range(0, len(keys), PICKED):
                some = keys[start : start + PICKED]
                still |= _compared(
                    dict(await self.running.picked(table, some)),
                    dict(await self.replayed.picked(table, some)),
                )
            self.suspects[table] = still

    async def fields(self, table: str, key: Row) -> dict[str, dict[str, str | None]]:
        """Return the fields of a row that differ, with the value of each side."""
        one, two = (
            await self.running.row(table, key) or {},
            await self.replayed.row(table, key) or {},
        )
        return {
            name: {"running": one.get(name), "replayed": two.get(name)}
            for name in dict.fromkeys([*one, *two])
            if one.get(name) != two.get(name)
        }

    @property
    def differing(self) -> int:
        return sum(map(len, self.suspects.values()))


def _compared(theirs: Mapping[Row, str], mine: Mapping[Row, str]) -> dict[Row, Kind]:
    found: dict[Row, Kind] = {}
    for key in sorted(theirs.keys() | mine.keys()):
        if theirs.get(key) != mine.get(key):
            found[key] = (
                "missing" if key not in theirs else "extra" if key not in mine else "differs"
            )
    return found
