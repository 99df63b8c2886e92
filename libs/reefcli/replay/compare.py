"""The differences between the running store and the store that was read from the log.

Ranges of rows are compared by digests. Rows that differ are suspects; a suspect counts if it still
differs when both sides have handled the same log.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import httpx
from pydantic import TypeAdapter

from reefcommon.errors import Unavailable
from services.experience.clickhouse.audit import KEYS
from services.experience.ports import Audit, RowDigests, RowKey, Slice

# A digest of this many rows takes milliseconds, and their keys fit into a message.
PAGE_ROWS = 10_000
# Keys a request.
PICKED = 500
Row = tuple[str, ...]
_SLICE, _DIGESTS = TypeAdapter(Slice), TypeAdapter(RowDigests)
_ROW: TypeAdapter[dict[str, str] | None] = TypeAdapter(dict[str, str] | None)
Kind = Literal["missing", "extra", "differs"]
"""missing: not in the running store; extra: there, and not in the log; differs: other content."""


@dataclass(frozen=True, slots=True)
class RunningStore:
    """Audit over the experience service's HTTP."""

    http: httpx.AsyncClient

    async def page(self, table: str, *, after: RowKey | None, limit: int) -> Slice:
        return _SLICE.validate_json(
            await self._ask(f"{table}/page?limit={limit}", {"after": after})
        )

    async def span(self, table: str, *, after: RowKey | None, until: RowKey | None) -> Slice:
        body = {"after": after, "until": until}
        return _SLICE.validate_json(await self._ask(f"{table}/span", body))

    async def rows(self, table: str, *, after: RowKey | None, until: RowKey | None) -> RowDigests:
        body = {"after": after, "until": until}
        return _DIGESTS.validate_json(await self._ask(f"{table}/rows", body))

    async def picked(self, table: str, keys: Sequence[RowKey]) -> RowDigests:
        return _DIGESTS.validate_json(await self._ask(f"{table}/picked", {"keys": keys}))

    async def row(self, table: str, key: RowKey) -> dict[str, str] | None:
        return _ROW.validate_json(await self._ask(f"{table}/row", key))

    async def _ask(self, path: str, body: object) -> bytes:
        try:
            return (await self.http.post(f"/audit/{path}", json=body)).raise_for_status().content
        except httpx.HTTPError as error:
            service = f"the experience service at {self.http.base_url}"
            raise Unavailable(f"{service} does not answer: {error!r}") from error


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
                span = await self.replayed.span(table, after=after, until=page.until)
                self.rows[table] += span.count
                if (span.count, span.digest) != (page.count, page.digest):
                    rows = [
                        dict(await side.rows(table, after=after, until=page.until))
                        for side in (self.running, self.replayed)
                    ]
                    self.suspects[table] |= _compared(*rows)
                if (after := page.until) is None:
                    break

    async def again(self) -> None:
        for table, rows in self.suspects.items():
            still: dict[Row, Kind] = {}
            keys = list(rows)
            # A request has a bounded size, however many suspects there are.
            for start in range(0, len(keys), PICKED):
                some = keys[start : start + PICKED]
                sides = [await side.picked(table, some) for side in (self.running, self.replayed)]
                still |= _compared(*map(dict, sides))
            self.suspects[table] = still

    async def fields(self, table: str, key: Row) -> dict[str, dict[str, str | None]]:
        """Return the fields of a row that differ, with the value of each side."""
        one = await self.running.row(table, key) or {}
        two = await self.replayed.row(table, key) or {}
        return {
            name: {"running": one.get(name), "replayed": two.get(name)}
            for name in dict.fromkeys([*one, *two])
            if one.get(name) != two.get(name)
        }

    @property
    def differing(self) -> int:
        return sum(map(len, self.suspects.values()))


def _compared(theirs: Mapping[Row, str], mine: Mapping[Row, str]) -> dict[Row, Kind]:
    def kind(key: Row) -> Kind:
        return "missing" if key not in theirs else "extra" if key not in mine else "differs"

    return {key: kind(key) for key, _ in sorted(theirs.items() ^ mine.items())}
