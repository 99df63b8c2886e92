"""The service on chDB, with the outside faked; every test has a store of its own."""

import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

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


async def _migrated(path: Path) -> Path:
    database = Database.embedded(path)
    await database.migrate()
    await database.close()
    return path


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A chDB with every migration, to be copied: to migrate one anew takes half a second of CPU."""
    with start_blocking_portal() as portal:
        return portal.call(_migrated, tmp_path_factory.mktemp("migrated") / "chdb")


@pytest.fixture
async def database(tmp_path: Path, migrated: Path) -> AsyncIterator[Database]:
    database = Database.embedded(shutil.copytree(migrated, tmp_path / "chdb", symlinks=True))
    yield database
    await database.close()


@pytest.fixture
def service(database: Database) -> Service:
    return make(database, Settings())
