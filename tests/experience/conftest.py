"""The service on chDB, with the outside faked; every test has a store of its own."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from services.experience.clickhouse import ClickHouseReads, ClickHouseStore, Database
from services.experience.handlers import Handlers
from services.experience.settings import Settings
from tests.experience.factory import Bodies, Clock, Flaky, Graves, Published, arrive


@dataclass
class Service:
    """Handlers with everything that a test looks at."""

    handlers: Handlers
    store: Flaky
    reads: ClickHouseReads
    published: Published
    graves: Graves
    bodies: Bodies
    clock: Clock

    async def take(self, *events: Any) -> None:
        await self.handlers.on_events(
            [arrive(event, offset) for offset, event in enumerate(events)]
        )

    async def restarted(self, settings: Settings | None = None) -> "Service":
        """The same store and outside, a new process."""
        service = make(self.reads.database, settings or Settings())
        service.handlers = replace(
            service.handlers, publisher=self.published, dead=self.graves, now=self.clock
        )
        await service.handlers.on_start()
        return replace(service, published=self.published, graves=self.graves, clock=self.clock)

    async def count(self, table: str) -> int:
        return (await self.reads.database.query(f"SELECT count() AS n FROM {table} FINAL"))[0]["n"]


def make(database: Database, settings: Settings) -> Service:
    published, graves, bodies, clock, store = (
        Published(),
        Graves(),
        Bodies(),
        Clock(),
        Flaky(ClickHouseStore(database)),
    )
    return Service(
        Handlers(settings, store, published, graves, bodies, clock),
        store,
        ClickHouseReads(database),
        published,
        graves,
        bodies,
        clock,
    )


@pytest.fixture
async def database(tmp_path: Path) -> AsyncIterator[Database]:
    database = Database.embedded(tmp_path / "chdb")
    await database.migrate()
    yield database
    await database.close()


@pytest.fixture
def service(database: Database) -> Service:
    return make(database, Settings())
