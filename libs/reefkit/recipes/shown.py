"""A host over HTTP, for people: the state of recipes, proposals, steps."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reefkit.jobs.store import JobStore
from reefkit.jobs.story import story_of

CALLS, PROPOSALS = 20, 100


def host_routes(store: JobStore, at_most: Mapping[str, int]) -> tuple[Route, ...]:
    """Build the routes. `at_most`: how many proposals may wait, by binding of this host."""

    def recipes(scenario: str) -> dict[str, Any]:
        return {
            key: {"state": store.state_rows(key), "calls": store.logged_calls(key, CALLS)}
            for key in _of(at_most, scenario)
        }

    def proposals(scenario: str) -> dict[str, Any]:
        return {
            "at_most": max((at_most[key] for key in _of(at_most, scenario)), default=0),
            "waiting": store.proposal_counts(scenario).get("waiting", 0),
            "data": store.proposals(scenario, PROPOSALS),
        }

    def proposal(scenario: str, name: str) -> dict[str, Any]:
        return store.proposal(scenario, name) or {}

    def step(scenario: str, name: str) -> dict[str, Any]:
        keys = _of(at_most, scenario)
        return {"data": [story_of(job) for job in store.steps(keys, name)]}

    return (
        _route("/recipes/{scenario}", recipes),
        _route("/proposals/{scenario}", proposals),
        _route("/proposals/{scenario}/{name}", proposal),
        _route("/steps/{scenario}/{name}", step),
    )


def _of(bindings: Mapping[str, int], scenario: str) -> list[str]:
    return [key for key in bindings if key.partition("/")[0] == scenario]


def _route(path: str, read: Callable[..., dict[str, Any]]) -> Route:
    async def answer(request: Request) -> Response:
        found = await asyncio.to_thread(read, **request.path_params)
        return Response(orjson.dumps(found), media_type="application/json")

    return Route(path, answer)
