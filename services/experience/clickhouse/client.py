"""The connection: a synchronous client in a thread, its errors, its migrations."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import clickhouse_connect
import orjson
import structlog
from clickhouse_connect.datatypes.base import ClickHouseType
from clickhouse_connect.driver import options
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, DataError

from reefcommon.artifacts import hash_file
from reefcommon.errors import BadConfig, Poison, Unavailable
from reefcommon.settings import SystemSettings

log = structlog.get_logger()

# At the first insert the client would import pandas (seconds, 50 MB) to see whether the rows are
# a data frame. They never are.
options.pd = None
options.pd_time_test = None

MIGRATIONS = Path(__file__).parent.parent / "migrations"
T = TypeVar("T")
Row = dict[str, Any]


def as_list(strings: Iterable[str]) -> str:
    """Encode strings as a parameter for `JSONExtract({name:String}, 'Array(String)')` in SQL."""
    return orjson.dumps(list(strings)).decode()


# chDB takes one engine a process and one process a path, and its client may not be used from two
# threads at once. The HTTP client is used in the same way, so that both behave alike.
class Database:
    """A ClickHouse that is connected when it is first needed, and again after an outage."""

    def __init__(self, connect: Callable[[], Client], where: str) -> None:
        self._connect = connect
        self._client: Client | None = None
        self._types: dict[tuple[str, ...], Sequence[ClickHouseType]] = {}
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="clickhouse")
        self.where = where
        self.away: str | None = "not connected yet"

    @classmethod
    def open(cls, system: SystemSettings) -> "Database":
        """Open the server that the settings name, else chDB under the state directory."""
        if system.clickhouse_url:
            return cls.server(system.clickhouse_url)
        return cls.embedded(system.state_dir / "chdb")

    @classmethod
    def embedded(cls, path: Path) -> "Database":

        def connect() -> Client:
            path.mkdir(parents=True, exist_ok=True)
            # Small lookups beside inserts; the other cores belong to the engine and the trainer.
            return clickhouse_connect.get_client(
                interface="chdb", path=str(path), tz_mode="aware", settings={"max_threads": 1}
            )

        return cls(connect, f"chDB at {path}")

    @classmethod
    def server(cls, url: str) -> "Database":
        """A ClickHouse server: http(s)://user:password@host:port/database."""
        more: Row = {"autogenerate_session_id": False, "send_receive_timeout": 60}
        connect = partial(clickhouse_connect.get_client, dsn=url, tz_mode="aware", **more)
        return cls(connect, "the ClickHouse server")

    async def insert(self, table: str, names: Sequence[str], columns: Sequence[list[Any]]) -> None:
        """Insert rows, given as columns; return when they are durable."""
        key = (table, *names)

        def insert(client: Client) -> None:
            # The client would ask for the types of the columns before each insert. They change
            # with a migration only.
            context = client.create_insert_context(
                table, names, column_types=self._types.get(key), column_oriented=True
            )
            self._types[key] = context.column_types
            client.insert(data=columns, context=context)

        await self._run(insert)

    async def query(self, sql: str, **parameters: Any) -> list[Row]:
        """Return the rows of a SELECT. Values are parameters (`{name:Type}`), never text."""
        return await self._run(
            lambda client: list(client.query(sql, parameters=parameters).named_results())
        )

    async def select(self, columns: str, table: str, rest: str, **parameters: Any) -> list[Row]:
        """Return rows as of their latest insert. The three texts are constants."""
        sql = f"SELECT {columns} FROM {table} FINAL WHERE {rest}"  # noqa: S608
        return await self.query(sql, **parameters)

    async def command(self, sql: str) -> None:
        await self._run(lambda client: client.command(sql))

    async def migrate(self, folder: Path = MIGRATIONS) -> list[int]:
        """Apply the new migrations in the order of their numbers; return the numbers.

        Raises:
            BadConfig: a recorded migration is missing here, or its text has changed.
        """
        return await self._run(lambda client: _migrate(client, folder))

    async def close(self) -> None:
        """Close the connection and end the thread, after the current work."""
        client, self._client = self._client, None
        if client is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, client.close)
        # The thread has run the close above by now.
        self._thread.shutdown(wait=False)

    async def _run(self, work: Callable[[Client], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._work, work)

    def _work(self, work: Callable[[Client], T]) -> T:
        try:
            if self._client is None:
                self._types.clear()
                self._client = self._connect()
            result = work(self._client)
        except (DataError, OverflowError) as error:
            raise Poison(f"the store refuses a row: {error}") from error
        except (ClickHouseError, OSError) as error:
            self.away = f"{type(error).__name__}: {error}"[:500]
            raise Unavailable(f"{self.where} does not answer: {self.away}") from error
        self.away = None
        return result


def _migrate(client: Client, folder: Path) -> list[int]:
    client.command(
        "CREATE TABLE IF NOT EXISTS migrations "
        "(number UInt32, name String, sha256 String, applied_at DateTime64(3, 'UTC')) "
        "ENGINE = MergeTree ORDER BY number"
    )
    files = {int(path.name.split("_", 1)[0]): path for path in sorted(folder.glob("[0-9]*.sql"))}
    applied = client.query("SELECT number, name, sha256 FROM migrations").result_rows
    for number, name, sha in applied:
        if number not in files or hash_file(files[number]) != sha:
            changed = f"migration {name} was applied to this store and is now missing or different"
            raise BadConfig(f"{changed}; migrations only go forward")
    new = sorted(files.keys() - {number for number, *_ in applied})
    for number in new:
        path = files[number]
        for statement in _statements(path.read_text(encoding="utf-8")):
            client.command(statement)
        row = [number, path.name, hash_file(path), datetime.now(UTC)]
        client.insert("migrations", [row], column_names=["number", "name", "sha256", "applied_at"])
        log.info("migration_applied", name=path.name)
    return new


def _statements(text: str) -> list[str]:
    # A statement ends with a semicolon at the end of a line; a comment has a line of its own.
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    parts = "\n".join(lines).split(";\n")
    return [part.strip() for part in parts if part.strip(" \n;")]
