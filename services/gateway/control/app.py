"""The control application: everything but the hot paths, in FastAPI, with the API's own error shape."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, JSONResponse
from starlette.routing import Route

from reefcommon.errors import Unavailable
from reefkit.ops import Health, ops_routes
from services.gateway.control.openapi import complete
from services.gateway.control.pages import SECURITY_HEADERS, docs_page
from services.gateway.control.routes import Desk, control_routes
from services.gateway.control.scopes import declared
from services.gateway.domain.errors import ApiError, invalid

log = structlog.get_logger()

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def control_app(desk: Desk, health: Health, lifespan: Lifespan) -> FastAPI:
    """The application, with its lifespan: the only part of the gateway that uvicorn starts and stops."""
    app = FastAPI(
        title="Reef gateway",
        version="1",
        lifespan=lifespan,
        description="An OpenAI endpoint that learns from its traffic.",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,  # it would send clients to whatever host they named
        # Without tokens a page of another origin in a browser on this machine could command by a form; the content type keeps it out.
        strict_content_type=True,
    )
    app.router.routes.extend(control_routes(desk))
    app.router.routes.extend(_open_routes(desk, health, app))
    scopes = declared(app.routes)
    app.add_exception_handler(ApiError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Unavailable, _unavailable)
    app.add_exception_handler(Exception, _failed)
    plain = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = complete(plain(), scopes)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
    return app


def _open_routes(desk: Desk, health: Health, app: FastAPI) -> list[Route]:
    """What asks for no token. `scopes.OPEN` says why."""

    async def readyz(request: Request) -> Response:
        failures = await health.failures()
        if not desk.may_read(request):
            failures = dict.fromkeys(failures, "/reef/status says why, to those who may read")
        return JSONResponse(
            {"ready": not failures, "failures": failures}, status_code=503 if failures else 200
        )

    async def docs(_request: Request) -> Response:
        return HTMLResponse(docs_page(app.openapi()), headers=SECURITY_HEADERS)

    kept = [route for route in ops_routes(health) if route.path in {"/healthz", "/metrics"}]
    return [*kept, Route("/readyz", readyz), Route("/docs", docs)]


def answer(error: ApiError) -> Response:
    """An error as a response."""
    headers = {name.decode(): value.decode() for name, value in error.headers()}
    return Response(error.body(), status_code=error.status, headers=headers)


async def _refused(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return answer(error)


async def _invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason = first["ctx"]["error"] if "ctx" in first else "it cannot be read"
        return answer(
            invalid(
                None,
                f"The request body is not valid JSON: {reason} (near character {first['loc'][-1]}).",
            )
        )
    if first["loc"] == ("body",):
        return answer(
            invalid(
                None,
                "The request body must be a JSON object, sent with `content-type: application/json`.",
            )
        )
    path = ".".join(str(part)[:80] for part in first["loc"][1:])
    return answer(invalid(path or None, f"{path or 'The request body'}: {first['msg']}"))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return answer(
            ApiError(
                404,
                f"There is nothing at {request.method} {request.url.path[:200]}; /docs lists what there is.",
                code="not_found",
            )
        )
    return answer(ApiError(error.status_code, str(error.detail), code="http_error"))


async def _unavailable(_request: Request, error: Exception) -> Response:
    log.warning("outside_system_unavailable", reason=str(error))
    message = "A part of Reef that this needs does not answer; try again. /reef/status says which."
    return answer(ApiError(503, message, code="unavailable", retry_after_s=2))


async def _failed(request: Request, error: Exception) -> Response:
    route = request.scope.get("route")  # not the path: a client makes it
    log.error(
        "request_failed", route=route.path if isinstance(route, Route) else "other", exc_info=error
    )
    return answer(
        ApiError(
            500,
            "Reef failed on this request; the operator finds the reason in the log.",
            code="internal_error",
        )
    )
