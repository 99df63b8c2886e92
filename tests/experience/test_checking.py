"""Files of the embedded store that the disk has damaged: found in the background, and said with what to do."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from services.experience.clickhouse import Database, look_through
from services.experience.handlers import Handlers
from services.experience.lifecycle import Lifecycle
from services.experience.settings import Settings

pytestmark = pytest.mark.store


async def filled(path: Path) -> None:
    """Two tables of one part each."""
    database = Database.embedded(path)
    for table in ("good", "bad"):
        await database.command(
            f"CREATE TABLE {table} (id String) ENGINE = MergeTree ORDER BY id SETTINGS min_bytes_for_wide_part = 0"
        )
        await database.command(
            f"INSERT INTO {table} SELECT '{table}' || toString(number) FROM numbers(1000)"
        )
    (row,) = await database.query("SELECT path FROM system.parts WHERE active AND table = 'bad'")
    await database.close()
    data = (path / row["path"] / "id.bin").read_bytes()
    (path / row["path"] / "id.bin").write_bytes(data[:40] + bytes([data[40] ^ 0xFF]) + data[41:])


async def test_a_damaged_part_is_named_and_others_are_not(tmp_path: Path) -> None:
    await filled(tmp_path / "chdb")
    database, damaged = Database.embedded(tmp_path / "chdb"), dict[str, str]()
    with capture_logs() as logs:
        await look_through(database, damaged)
    await database.close()
    assert list(damaged) == ["bad/all_1_1_0"]
    assert "hecksum" in damaged["bad/all_1_1_0"]
    assert "reef replay --into" in damaged["bad/all_1_1_0"]
    assert [
        (row["part"], "reef replay --into" in row["hint"])
        for row in logs
        if row["event"] == "store_damaged"
    ] == [("bad/all_1_1_0", True)]


async def test_a_part_that_was_merged_away(database: Database) -> None:
    """It is nobody's fault, and the store is not called away for it."""
    assert await database.check_part("records", "all_7_7_0") is None
    assert database.away is None


async def test_it_is_looked_for_after_the_start(tmp_path: Path) -> None:
    """In the background, and shown; the service runs."""
    await filled(tmp_path / "chdb")

    async def nothing() -> None:
        pass

    handlers, guard = (
        SimpleNamespace(on_start=nothing),
        SimpleNamespace(broker=SimpleNamespace(start=nothing, stop=nothing)),
    )
    life = Lifecycle(
        Database.embedded(tmp_path / "chdb"),
        cast("Handlers", handlers),
        cast("Any", guard),
        Settings(),
    )
    async with life.lifespan(None), asyncio.timeout(60):
        while not life.damaged:
            await asyncio.sleep(0.02)
        assert await life.check_started() is None
        assert list(life.damaged) == ["bad/all_1_1_0"]
