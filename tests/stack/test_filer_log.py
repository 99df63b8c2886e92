"""The filer's change log, by a filer that answers as it is told to; the real one is in `test_merger.py`."""

from datetime import UTC, datetime

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from reefstack.merger.filer_log import purge


def answering(status: int) -> TestServer:
    async def answer(_request: web.Request) -> web.Response:
        return web.Response(status=status)

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    return TestServer(app)


async def test_a_log_that_is_not_there_yet_is_nothing_to_remove() -> None:
    """Every fresh start told of a failure, ten seconds after it was up: the filer writes its first entry a minute later."""
    async with answering(404) as filer:
        assert await purge(str(filer.make_url("/")), before=datetime.now(UTC)) == 0


async def test_a_filer_that_fails_is_told_of() -> None:
    async with answering(500) as filer:
        with pytest.raises(aiohttp.ClientResponseError, match="500"):
            await purge(str(filer.make_url("/")), before=datetime.now(UTC))
