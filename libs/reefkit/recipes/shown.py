"""The state and the calls of recipes over HTTP, for people: `reef recipes state`."""

import asyncio
from collections.abc import Iterable
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reefkit.jobs.store import JobStore

CALLS = 20


def recipe_route(store: JobStore, bindings: Iterable[str]) -> Route:
    """Build the route `/recipes/{scenario}`. `bindings`: the keys of the host's bindings."""
    keys = tuple(bindings)

    def shown(scenario: str) -> dict[str, Any]:
        return {
            key: {"state": store.state_rows(key), "calls": store.logged_calls(key, CALLS)}
            for key in keys
            if key.partition("/")[0] == scenario
        }

    async def recipes(request: Request) -> Response:
        found = await asyncio.to_thread(shown, request.path_params["scenario"])
        return Response(orjson.dumps(found), media_type="application/json")

    return Route("/recipes/{scenario}", recipes)
