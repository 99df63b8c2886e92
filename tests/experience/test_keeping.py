"""Rows about traffic go after their time; the release chain and reports that wait stay."""

from datetime import UTC, datetime, timedelta

import pytest

from services.experience.clickhouse import Database, keep
from services.experience.domain.parking import Parked
from services.experience.ports import ReportRow
from services.experience.settings import Settings
from tests.experience.conftest import make
from tests.experience.factory import inference, report
from tests.experience.test_store_contract import published, record

pytestmark = pytest.mark.store

OLD = datetime.now(UTC) - timedelta(days=40)
NEW = datetime.now(UTC)


async def tables(database: Database) -> dict[str, int]:
    return {
        name: (await database.query(f"SELECT count() AS n FROM {name} FINAL"))[0]["n"]
        for name in ("records", "reports", "releases")
    }


async def test_rows_go_after_their_time_and_what_waits_or_names_a_release_stays(
    database: Database,
) -> None:
    service = make(database, Settings())
    store = service.store
    old, new = (
        inference().model_copy(update={"at": OLD}),
        inference().model_copy(update={"at": NEW}),
    )
    await store.insert_records([record(old)])
    await store.insert_records([record(new)])
    reports = [
        report(old.event_id).model_copy(update={"at": OLD, "event_id": f"rep-{n}"})
        for n in range(2)
    ]
    states = ("parked", "joined")
    await store.insert_reports(
        [
            ReportRow(Parked(r, OLD, 0, 0, None), s, None, 1)
            for r, s in zip(reports, states, strict=True)
        ]
    )
    await store.insert_outcomes([published("s").model_copy(update={"at": OLD})])
    assert await keep(database, 0) == []
    assert set(await keep(database, 30)) == {
        "records",
        "refusals",
        "reports",
        "samples",
        "sessions",
        "signals",
        "steps",
        "turns",
        "units",
    }
    assert await keep(database, 30) == []
    for table in ("records", "reports", "releases"):
        await database.command(f"OPTIMIZE TABLE {table} FINAL")
    assert await tables(database) == {"records": 1, "reports": 1, "releases": 1}
    (left,) = await database.query("SELECT record_id FROM records FINAL")
    assert left["record_id"] == new.event_id
    assert [parked.report.event_id for parked in await store.parked(after="", limit=10)] == [
        "rep-0"
    ]
    assert set(await keep(database, 0)) == {
        "records",
        "refusals",
        "reports",
        "samples",
        "sessions",
        "signals",
        "steps",
        "turns",
        "units",
    }
    await store.insert_records([record(old)])
    await database.command("OPTIMIZE TABLE records FINAL")
    assert (await tables(database))["records"] == 2
