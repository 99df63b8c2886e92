"""The object store as a process."""

import asyncio
import logging
import signal
import sys
from functools import partial

import uvloop

from reefcommon.errors import BadConfig
from reefstack.objectstore import signature
from reefstack.objectstore.errors import Damaged, InUse
from reefstack.objectstore.requests import Requests
from reefstack.objectstore.segments import Segments
from reefstack.objectstore.server import Commits, Connection
from reefstack.objectstore.settings import Settings
from reefstack.objectstore.store import Store

_EXIT_CONFIG = 78


async def serve(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises InUse, Damaged, OSError."""
    size = settings.segment_mb * 1024 * 1024
    store = Store(Segments(settings.directory, size, skip_damage=settings.skip_damage))
    lazily = [f"/{settings.bucket}/{part}" for part in settings.lazily.split(",") if part]
    commits = Commits(store, Requests(store, settings.bucket), lazily, settings.lazily_within_s)
    secret_key = settings.secret_key.get_secret_value()
    check = partial(signature.check, access_key=settings.access_key, secret_key=secret_key)
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    connection = partial(Connection, commits, check)
    server = await loop.create_server(connection, "127.0.0.1", settings.port)
    await stopped.wait()
    server.close()
    commits.close()


def main() -> None:
    """Run it with the settings of the environment."""
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s")
    try:
        uvloop.run(serve(Settings.load()))
    except (BadConfig, Damaged, InUse) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(_EXIT_CONFIG)
