"""The state of recipes is read from both hosts, and a host that is away is named."""

from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from reefkit.ops import Health
from services.gateway.control.status import SystemStatus
from services.gateway.domain.errors import ApiError
from tests.gateway.conftest import Bench


@asynccontextmanager
async def host(found):
    async def recipes(request):
        return web.json_response({f"{request.match_info['scenario']}/{found}": {"state": []}})

    app = web.Application()
    app.router.add_get("/recipes/{scenario}", recipes)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def none_pending(_scenario):
    return []


async def test_both_hosts_are_asked():
    async with host("a:B") as trainer, host("c:D") as harness:
        urls = {"trainer": trainer, "harness": harness, "experience": "http://127.0.0.1:9"}
        facts = list, bool, none_pending, none_pending, none_pending
        status = SystemStatus(Health("gateway"), None, urls, *facts)
        assert set(await status.recipes("support")) == {"support/a:B", "support/c:D"}
        urls["harness"] = "http://127.0.0.1:9"
        with pytest.raises(ApiError, match="The harness does not answer"):
            await status.recipes("support")


async def test_an_unknown_scenario_has_no_recipes(bench: Bench) -> None:
    assert (await bench.http.get("/reef/scenarios/none-such/recipes")).status_code == 404
