"""Holding one store against another: digests that find the one row and the one field that differ."""

import httpx
import pytest
from fastapi import FastAPI

from services.experience.clickhouse import ClickHouseAudit
from services.experience.clickhouse.audit import IGNORED, KEYS
from services.experience.http import audit_routes, errors_as_answers
from tests.experience.conftest import Service
from tests.experience.factory import assistant, inference, report, user

pytestmark = pytest.mark.store


async def filled(service: Service) -> ClickHouseAudit:
    records = [
        inference((user(f"q{n}"),), record_id=f"rec-{n}", at=n, error="it's" if n == 3 else None)
        for n in range(7)
    ]
    await service.take(
        *records,
        *(report(record.event_id, report_id=f"rep-{record.event_id}") for record in records),
    )
    return ClickHouseAudit(service.reads.database)


async def test_pages_spans_and_rows_are_of_one_piece(service: Service) -> None:
    audit = await filled(service)
    for table, width in KEYS.items():
        whole = await audit.span(table, after=None, until=None)
        after, seen, rows = None, 0, []
        while True:
            page = await audit.page(table, after=after, limit=3)
            assert (
                page.count == 0
                or (await audit.span(table, after=after, until=page.until)) == page
                or page.until is None
            )
            rows += await audit.rows(table, after=after, until=page.until)
            seen += page.count
            after = page.until
            if after is None:
                break
            assert len(after) == len(width)
        assert (seen, len(rows)) == (whole.count, whole.count)
        assert rows == sorted(rows)
        assert await audit.picked(table, [key for key, _ in rows]) == rows
    assert (await audit.span("records", after=None, until=None)).count == 7


async def test_a_change_of_any_field_that_counts_is_seen(service: Service) -> None:
    audit = await filled(service)
    changed = {"records": "error", "reports": "state", "samples": "score", "sessions": "turns"}
    for table, column in changed.items():
        before = await audit.span(table, after=None, until=None)
        new = {"error": "'x'", "state": "'parked'", "score": "0.25", "turns": "9"}[column]
        key = f"({', '.join(KEYS[table])}) = (SELECT {', '.join(KEYS[table])} FROM {table} ORDER BY {', '.join(KEYS[table])} LIMIT 1)"
        sql = f"ALTER TABLE {table} UPDATE {column} = {new} WHERE {key} SETTINGS mutations_sync = 2"
        await audit.database._run(lambda client, sql=sql: client.command(sql))
        assert (await audit.span(table, after=None, until=None)).digest != before.digest, table
    for table, ignored in IGNORED.items():
        assert not set(ignored) & set(await audit.columns(table))
        assert all(ignored.values()), "each with its reason"


async def test_the_routes_answer_with_the_same(service: Service) -> None:
    audit = await filled(service)
    app = FastAPI()
    app.middleware("http")(errors_as_answers)
    app.include_router(audit_routes(audit))
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://experience"
    ) as http:
        page = (await http.post("/audit/records/page", params={"limit": 3}, json={})).json()
        assert (page["count"], page["until"]) == (3, ["rec-2"])
        rows = (
            await http.post("/audit/records/rows", json={"after": ["rec-2"], "until": ["rec-4"]})
        ).json()
        assert [key for key, _ in rows] == [["rec-3"], ["rec-4"]]
        assert (
            await http.post("/audit/records/picked", json={"keys": [["rec-3"], ["none"]]})
        ).json() == rows[:1]
        row = (await http.post("/audit/records/row", json=["rec-3"])).json()
        assert row["error"] == r"'it\'s'"
        assert (await http.post("/audit/records/row", json=["none"])).json() is None
        assert (await http.post("/audit/nothing/page", json={})).status_code == 404
        hostile = "x') OR 1=1 --"
        assert (await http.post("/audit/records/row", json=[hostile])).json() is None


async def test_conversations_make_one_row_a_session(service: Service) -> None:
    await service.take(
        inference((user("a"),), "b"), inference((user("a"), assistant("b"), user("c")), "d", at=1)
    )
    assert (
        await ClickHouseAudit(service.reads.database).span("sessions", after=None, until=None)
    ).count == 1
