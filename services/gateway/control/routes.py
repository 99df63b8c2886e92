"""The control routes: models, scenarios, releases, commands, reads, status."""

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.routing import BaseRoute

from reefcommon.events import PromoteRequested, Release, RollbackRequested
from reefcommon.ids import SCENARIO_PATTERN, is_receipt
from reefcommon.routing import RoutingPolicy
from services.gateway.control.candidates import candidate_routes
from services.gateway.control.contents import content_routes
from services.gateway.control.desk import Desk, Scenario, answer_json
from services.gateway.control.harness import harness_routes, installation_routes
from services.gateway.control.hot_routes import hot_routes
from services.gateway.control.proposals import fate_routes, proposal_routes
from services.gateway.control.scenarios import Choice, release_row
from services.gateway.domain.access import Grant
from services.gateway.domain.errors import ApiError, invalid, model_not_found
from services.gateway.exchange.intake import traceparent_of
from services.gateway.handlers import known_from

Limit = Annotated[int, Query(ge=1, le=1000)]


class Page(BaseModel):
    """A page of a list, newest first."""

    limit: int = Field(50, ge=1, le=1000)
    cursor: str | None = Field(None, max_length=256)


class RecordsPage(Page):
    """A page of the records of a session, or with an outcome."""

    session: str | None = Field(None, max_length=256)
    outcome: str | None = Field(None, pattern="^(ok|aborted|failed|upstream_incomplete)$")


class SamplesPage(Page):
    """A page of the samples that can be trained on, or cannot."""

    trainable: bool | None = None


class UnitsPage(Page):
    """A page of the turns, or of the ended sessions."""

    kind: Literal["turn", "session"] | None = None


class SignalsPage(Page):
    """A page of the signals, or of those on a unit."""

    unit: str | None = Field(None, max_length=256)


_LISTS: dict[str, type[Page]] = {
    "records": RecordsPage, "sessions": Page, "samples": SamplesPage, "units": UnitsPage,
    "signals": SignalsPage, "steps": Page,
}  # fmt: skip


class NewScenario(BaseModel):
    """Body of `POST /reef/scenarios`."""

    model_config = ConfigDict(extra="forbid")
    scenario: str = Field(pattern=SCENARIO_PATTERN)


class ReleaseChoice(BaseModel):
    """Body of rollback and promote."""

    model_config = ConfigDict(extra="forbid")
    release_id: str = Field(min_length=1, max_length=200)
    reason: str = Field("", max_length=2000)


class Hold(BaseModel):
    """Body of hold and resume."""

    model_config = ConfigDict(extra="forbid")
    reason: str = Field("", max_length=2000)


class Routing(RoutingPolicy):
    """Body of `POST …/routing`: the policy, and why."""

    reason: str = Field("", max_length=2000)


def control_routes(desk: Desk) -> list[BaseRoute]:
    """Return all control routes, and the descriptions of the hot paths."""
    parts = (
        *(hot_routes, _models, _scenarios, content_routes, harness_routes, installation_routes),
        *(proposal_routes, fate_routes, candidate_routes),
        *(_commands, _records, _lists, _operations),
    )
    return [route for part in parts for route in part(desk).routes]


def _models(desk: Desk) -> APIRouter:
    routes = APIRouter(tags=["inference"])
    name = desk.intake.base_model
    shown = {"object": "model", "created": desk.started_at, "owned_by": "reef"}
    rows = {each: {"id": each, **shown} for each in (name, *desk.intake.mapped)}

    @routes.get("/v1/models", dependencies=[Depends(desk.allow("infer"))])
    async def models() -> Response:
        return answer_json({"object": "list", "data": [*rows.values()]})

    @routes.get("/v1/models/{model:path}", dependencies=[Depends(desk.allow("infer"))])
    async def model(model: str) -> Response:
        if model not in rows:
            raise model_not_found(model, name)
        return answer_json(rows[model])

    return routes


def _scenarios(desk: Desk) -> APIRouter:
    read = desk.allow("read")
    routes = APIRouter(prefix="/reef/scenarios", tags=["scenarios"], dependencies=[Depends(read)])

    @routes.get("")
    async def scenarios(grant: Annotated[Grant, Depends(read)]) -> Response:
        heads = desk.scenarios.table.heads()
        rows = [_scenario_row(desk, head) for head in heads if grant.sees(head.scenario)]
        return answer_json({"data": rows})

    @routes.get("/{scenario}/contract")
    async def contract(scenario: Scenario) -> Response:
        return answer_json(desk.scenarios.contract(scenario))

    @routes.get("/{scenario}/releases")
    async def releases(scenario: Scenario, limit: Limit = 50) -> Response:
        return answer_json({"data": await desk.scenarios.releases(scenario, limit)})

    @routes.get("/{scenario}/rejections")
    async def rejections(scenario: Scenario, limit: Limit = 50) -> Response:
        desk.scenarios.exists(scenario)
        return answer_json({"data": desk.rejections.rows(scenario, limit)})

    stream: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {}}}}

    @routes.get("/{scenario}/events", response_class=StreamingResponse, responses=stream)
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
        existed = desk.scenarios.table.head(body.scenario) is not None
        release = await desk.scenarios.create(body.scenario, _trace(request))
        return answer_json(_scenario_row(desk, release), 200 if existed else 201)

    async def chosen(
        kind: type[Choice], scenario: str, choice: ReleaseChoice, request: Request
    ) -> Response:
        about = choice.model_dump()
        release = await desk.scenarios.serve(kind, scenario, _trace(request), **about)
        return answer_json(release_row(release, current=True))

    @routes.post("/scenarios/{scenario}/rollback", dependencies=[Depends(desk.allow("admin"))])
    async def rollback(scenario: Scenario, body: ReleaseChoice, request: Request) -> Response:
        return await chosen(RollbackRequested, scenario, body, request)

    @routes.post("/scenarios/{scenario}/promote", dependencies=[Depends(desk.allow("admin"))])
    async def promote(scenario: Scenario, body: ReleaseChoice, request: Request) -> Response:
        return await chosen(PromoteRequested, scenario, body, request)

    @routes.post("/scenarios/{scenario}/hold", dependencies=[Depends(desk.allow("admin"))])
    async def hold(scenario: Scenario, body: Hold, request: Request) -> Response:
        """Let the winners of a scenario wait for a person, as with `review: manual`."""
        return answer_json(await desk.scenarios.hold(scenario, body.reason, _trace(request)))

    @routes.post("/scenarios/{scenario}/resume", dependencies=[Depends(desk.allow("admin"))])
    async def resume(scenario: Scenario, _body: Hold, request: Request) -> Response:
        """End the hold of a scenario. The winners that wait still wait for a person."""
        return answer_json(await desk.scenarios.hold(scenario, None, _trace(request)))

    @routes.post("/scenarios/{scenario}/routing", dependencies=[Depends(desk.allow("admin"))])
    async def routing(scenario: Scenario, body: Routing, request: Request) -> Response:
        """Share the sessions of a scenario among releases, from the next request on."""
        policy = RoutingPolicy(shares=body.shares, rules=body.rules)
        release = await desk.scenarios.route(scenario, policy, body.reason, _trace(request))
        return answer_json(release_row(release, current=True))

    @routes.get("/releases")
    async def traffic(grant: Annotated[Grant, Depends(desk.allow("read"))]) -> Response:
        """Say which releases get which sessions, by scenario."""
        heads = [head for head in desk.scenarios.table.heads() if grant.sees(head.scenario)]
        return answer_json({"data": [await _traffic_row(desk, head) for head in heads]})

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


def _list_of(desk: Desk, name: str, page_type: type[Page]) -> Callable[..., Awaitable[Response]]:
    async def rows(
        scenario: Scenario,
        page: Annotated[page_type, Query()],  # type: ignore[valid-type]
    ) -> Response:
        return await desk.relay(f"/scenarios/{scenario}/{name}", page)

    return rows


def _lists(desk: Desk) -> APIRouter:
    allowed = [Depends(desk.allow("read")), Depends(desk.known)]
    routes = APIRouter(prefix="/reef/scenarios/{scenario}", tags=["reads"], dependencies=allowed)

    for name, page_type in _LISTS.items():
        routes.get(f"/{name}", name=name)(_list_of(desk, name, page_type))

    @routes.get("/recipes")
    async def recipes(scenario: Scenario) -> Response:
        return answer_json(await desk.status.recipes(scenario))

    return routes


def _operations(desk: Desk) -> APIRouter:
    routes = APIRouter(tags=["operations"])

    @routes.get("/reef/status")
    async def whole(grant: Annotated[Grant, Depends(desk.allow("read"))]) -> Response:
        return answer_json(await desk.status.read(grant))

    @routes.get("/status")
    async def own(grant: Annotated[Grant, Depends(desk.allow("read"))]) -> Response:
        return answer_json(await desk.status.own(grant))

    return routes


def _scenario_row(desk: Desk, head: Release) -> dict[str, Any]:
    row = release_row(head, current=True)
    return {"scenario": head.scenario, "learns": desk.scenarios.learns(head.scenario), "head": row}


async def _traffic_row(desk: Desk, head: Release) -> dict[str, Any]:
    rows = await desk.scenarios.traffic(head)
    gets = [{"release_id": release_id, **row} for release_id, row in rows.items()]
    faults = desk.scenarios.not_routed(head.scenario)
    about = {"head": head.release_id, "policy": head.contents.get("routing")}
    return {"scenario": head.scenario, **about, "traffic": gets, "not_routed": faults}


def _trace(request: Request) -> str:
    return traceparent_of(dict(request.scope["headers"]))
