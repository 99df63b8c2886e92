"""The control routes: models, scenarios, releases, commands, reads, status."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.routing import BaseRoute

from reefcommon.events import Release
from reefcommon.ids import SCENARIO_PATTERN, is_receipt
from services.gateway.control.desk import Desk, Scenario
from services.gateway.control.hot_routes import hot_routes
from services.gateway.control.scenarios import release_row
from services.gateway.domain.access import Grant
from services.gateway.domain.errors import ApiError, invalid, model_not_found
from services.gateway.exchange.intake import traceparent_of
from services.gateway.handlers import known_from

Limit = Annotated[int, Query(ge=1, le=1000)]
Outcome = Annotated[str | None, Query(pattern="^(ok|aborted|failed|upstream_incomplete)$")]
Serve = Callable[[str, str, str, str], Awaitable[Release]]
Cursor = Annotated[str | None, Query(max_length=256)]


class NewScenario(BaseModel):
    """Body of `POST /reef/scenarios`."""

    model_config = ConfigDict(extra="forbid")
    scenario: str = Field(pattern=SCENARIO_PATTERN)


class ReleaseChoice(BaseModel):
    """Body of rollback and promote."""

    model_config = ConfigDict(extra="forbid")
    release_id: str = Field(min_length=1, max_length=200)
    reason: str = Field("", max_length=2000)


def control_routes(desk: Desk) -> list[BaseRoute]:
    """Return all control routes, and the descriptions of the hot paths."""
    parts = (hot_routes, _models, _scenarios, _commands, _records, _lists, _operations)
    return [route for part in parts for route in part(desk).routes]


def _models(desk: Desk) -> APIRouter:
    routes = APIRouter(tags=["inference"])
    name = desk.intake.base_model
    row = {"id": name, "object": "model", "created": desk.started_at, "owned_by": "reef"}

    @routes.get("/v1/models", dependencies=[Depends(desk.allow("infer"))])
    async def models() -> Response:
        return _json({"object": "list", "data": [row]})

    @routes.get("/v1/models/{model:path}", dependencies=[Depends(desk.allow("infer"))])
    async def model(model: str) -> Response:
        if model != name:
            raise model_not_found(model, name)
        return _json(row)

    return routes


def _scenarios(desk: Desk) -> APIRouter:
    routes = APIRouter(prefix="/reef", tags=["scenarios"])

    @routes.get("/scenarios")
    async def scenarios(grant: Annotated[Grant, Depends(desk.allow("read"))]) -> Response:
        table = desk.scenarios.handlers.table
        heads = [table.head(name) for name in table.scenarios() if grant.sees(name)]
        return _json({"data": [_scenario_row(desk, head) for head in heads if head is not None]})

    @routes.get("/scenarios/{scenario}/contract", dependencies=[Depends(desk.allow("read"))])
    async def contract(scenario: Scenario) -> Response:
        return _json(desk.scenarios.contract(scenario))

    @routes.get("/scenarios/{scenario}/releases", dependencies=[Depends(desk.allow("read"))])
    async def releases(scenario: Scenario, limit: Limit = 50) -> Response:
        return _json({"data": await desk.scenarios.releases(scenario, limit)})

    @routes.get("/scenarios/{scenario}/rejections", dependencies=[Depends(desk.allow("read"))])
    async def rejections(scenario: Scenario, limit: Limit = 50) -> Response:
        desk.scenarios.exists(scenario)
        return _json({"data": desk.rejections.rows(scenario, limit)})

    stream: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}

    @routes.get(
        "/scenarios/{scenario}/events",
        dependencies=[Depends(desk.allow("read"))],
        response_class=StreamingResponse,
        responses=stream,
    )
    async def events(scenario: Scenario) -> Response:
        desk.scenarios.exists(scenario)
        return StreamingResponse(
            desk.fanout.tail(scenario),
            media_type="text/event-stream",
            headers={"cache-control": "no-store"},
        )

    return routes


def _commands(desk: Desk) -> APIRouter:
    routes = APIRouter(prefix="/reef", tags=["releases"])

    @routes.post(
        "/scenarios",
        status_code=201,
        responses={200: {"description": "it exists already, and is left as it is"}},
    )
    async def create(
        body: NewScenario, request: Request, grant: Annotated[Grant, Depends(desk.allow("admin"))]
    ) -> Response:
        grant.check("admin", body.scenario)
        existed = desk.scenarios.handlers.table.head(body.scenario) is not None
        release = await desk.scenarios.create(body.scenario, _trace(request))
        return _json(_scenario_row(desk, release), 200 if existed else 201)

    async def chosen(
        serve: Serve, scenario: str, choice: ReleaseChoice, request: Request
    ) -> dict[str, Any]:
        release = await serve(scenario, choice.release_id, choice.reason, _trace(request))
        return release_row(release, current=True)

    @routes.post("/scenarios/{scenario}/rollback", dependencies=[Depends(desk.allow("admin"))])
    async def rollback(scenario: Scenario, body: ReleaseChoice, request: Request) -> Response:
        return _json(await chosen(desk.scenarios.rollback, scenario, body, request))

    @routes.post("/scenarios/{scenario}/promote", dependencies=[Depends(desk.allow("admin"))])
    async def promote(scenario: Scenario, body: ReleaseChoice, request: Request) -> Response:
        return _json(await chosen(desk.scenarios.promote, scenario, body, request))

    return routes


def _records(desk: Desk) -> APIRouter:
    routes = APIRouter(prefix="/reef", tags=["reads"])

    @routes.get("/records/{record_id}")
    async def record(
        record_id: str, grant: Annotated[Grant, Depends(desk.allow("read"))]
    ) -> Response:
        if not is_receipt(record_id):
            raise invalid("record_id", "This is not a receipt.")
        answer = await desk.relay(f"/records/{record_id}")
        known = known_from(answer.status_code, bytes(answer.body))
        hidden = grant.scenarios is not None and (known is None or not grant.sees(known[0]))
        # the same words for both: the records of others do not show
        if hidden or answer.status_code == 404:
            raise ApiError(404, f"There is no record {record_id}.", code="record_not_found")
        return answer

    return routes


def _lists(desk: Desk) -> APIRouter:
    allowed = [Depends(desk.allow("read")), Depends(desk.known)]
    routes = APIRouter(prefix="/reef/scenarios/{scenario}", tags=["reads"], dependencies=allowed)

    @routes.get("/records")
    async def records(
        scenario: Scenario,
        session: Annotated[str | None, Query(max_length=256)] = None,
        outcome: Outcome = None,
        limit: Limit = 50,
        cursor: Cursor = None,
    ) -> Response:
        wanted = {"session": session, "outcome": outcome, "limit": limit, "cursor": cursor}
        return await desk.relay(f"/scenarios/{scenario}/records", **wanted)

    @routes.get("/sessions")
    async def sessions(scenario: Scenario, limit: Limit = 50, cursor: Cursor = None) -> Response:
        return await desk.relay(f"/scenarios/{scenario}/sessions", limit=limit, cursor=cursor)

    @routes.get("/samples")
    async def samples(
        scenario: Scenario, trainable: bool | None = None, limit: Limit = 50, cursor: Cursor = None
    ) -> Response:
        wanted = None if trainable is None else str(trainable).lower()
        return await desk.relay(
            f"/scenarios/{scenario}/samples", trainable=wanted, limit=limit, cursor=cursor
        )

    @routes.get("/steps")
    async def steps(scenario: Scenario, limit: Limit = 50, cursor: Cursor = None) -> Response:
        return await desk.relay(f"/scenarios/{scenario}/steps", limit=limit, cursor=cursor)

    return routes


def _operations(desk: Desk) -> APIRouter:
    routes = APIRouter(tags=["operations"])

    @routes.get("/reef/status")
    async def whole(grant: Annotated[Grant, Depends(desk.allow("read"))]) -> Response:
        return _json(await desk.status.read(grant))

    @routes.get("/status")
    async def own(grant: Annotated[Grant, Depends(desk.allow("read"))]) -> Response:
        return _json(await desk.status.own(grant))

    return routes


def _scenario_row(desk: Desk, head: Release) -> dict[str, Any]:
    row = release_row(head, current=True)
    return {"scenario": head.scenario, "learns": desk.scenarios.learns(head.scenario), "head": row}


def _trace(request: Request) -> str:
    return traceparent_of(dict(request.scope["headers"]))


def _json(body: Any, status: int = 200) -> Response:
    encoded = orjson.dumps(body, default=str)
    return Response(encoded, status_code=status, media_type="application/json")
