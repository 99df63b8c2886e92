"""The control application, in FastAPI: all routes but the hot paths."""

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Match, Route

from reefcommon.errors import Unavailable
from reefkit.ops import Health, ops_routes
from services.gateway.control.desk import Desk
from services.gateway.control.docs import complete, docs_routes
from services.gateway.control.harness import INSTALL, refused_script
from services.gateway.control.routes import control_routes
from services.gateway.control.scopes import declared
from services.gateway.domain.errors import ApiError, invalid
from services.gateway.exchange.client import refusal_of

_ABOUT = {
    "service": "Reef gateway",
    "about": "An OpenAI endpoint that learns from its traffic.",
    "openai_base_url": "/v1",
    "feedback": "POST /reef/report",
    "docs": "/docs",
    "openapi": "/openapi.json",
    "status": "/reef/status",
}

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def control_app(desk: Desk, health: Health, lifespan: Lifespan) -> FastAPI:
    """Return the application; its lifespan starts and stops the gateway."""
    app = FastAPI(
        title="Reef gateway",
        version="1",
        lifespan=lifespan,
        description="An OpenAI endpoint that learns from its traffic.",
        docs_url=None,  # FastAPI's page loads scripts from another host
        redoc_url=None,
        redirect_slashes=False,  # it would send clients to whatever host they named
        # Without tokens, a form on a page of another origin could command from a browser on this
        # machine. The content type keeps it out.
        strict_content_type=True,
    )
    app.router.routes.extend(control_routes(desk))
    app.router.routes.extend(_open_routes(desk, health))
    app.router.routes.extend(docs_routes(app.title))
    scopes = declared(app.routes)
    for kind in (ApiError, RequestValidationError, HTTPException, Unavailable, Exception):
        app.add_exception_handler(kind, _answer)
    plain = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = complete(plain(), scopes)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
    return app


def _open_routes(desk: Desk, health: Health) -> list[Route]:
    # `scopes.OPEN` says why they need no token

    async def readyz(request: Request) -> Response:
        failures = await health.failures()
        if not desk.may_read(request):
            failures = dict.fromkeys(failures, "/reef/status says why, to those who may read")
        return JSONResponse(
            {"ready": not failures, "failures": failures}, status_code=503 if failures else 200
        )

    async def root(_request: Request) -> Response:
        return JSONResponse(_ABOUT)

    kept = [route for route in ops_routes(health) if route.path in {"/healthz", "/metrics"}]
    return [*kept, Route("/readyz", readyz), Route("/", root)]


async def _answer(request: Request, error: Exception) -> Response:
    refusal = _refusal(request, error)
    if request.url.path == INSTALL:
        return refused_script(refusal)
    headers = {name.decode(): value.decode() for name, value in refusal.headers()}
    return Response(refusal.body(), status_code=refusal.status, headers=headers)


def _refusal(request: Request, error: Exception) -> ApiError:
    match error:
        case RequestValidationError():
            return _invalid(error)
        case HTTPException():
            return _http(request, error)
    route = request.scope.get("route")  # not the path: a client makes it
    return refusal_of(error, route.path if isinstance(route, Route) else "other")


def _invalid(error: RequestValidationError) -> ApiError:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        reason = first["ctx"]["error"] if "ctx" in first else "it cannot be read"
        at = first["loc"][-1]
        return invalid(None, f"The request body is not valid JSON: {reason} (at character {at}).")
    if first["loc"] == ("body",):
        words = "The request body must be a JSON object with `content-type: application/json`."
        return invalid(None, words)
    path = ".".join(str(part)[:80] for part in first["loc"][1:])
    gone, words = first["type"] == "missing", f"{path or 'The request body'}: {first['msg']}"
    return invalid(path or None, f"The field {path!r} is missing." if gone else words)


def _http(request: Request, error: HTTPException) -> ApiError:
    path, routes = request.url.path, request.app.routes
    if error.status_code == 404:
        words = f"{request.method} {path[:200]} is no route; /docs lists all routes."
        return ApiError(404, words + _hint(path, routes), code="not_found")
    if error.status_code == 405:
        # Starlette names the methods of the first route with this path alone.
        partial = (r for r in routes if r.matches(request.scope)[0] is Match.PARTIAL)
        allow = ", ".join(sorted({method for route in partial for method in route.methods}))
        words = f"{path[:200]} takes {allow}, not {request.method}."
        return ApiError(405, words, code="method_not_allowed", allow=allow)
    return ApiError(error.status_code, str(error.detail), code="http_error")


def _hint(path: str, routes: Iterable[BaseRoute]) -> str:
    # a base URL without /v1, and a slash at the end, are the usual mistakes
    bare = "/" + path.strip("/")
    for meant in (bare, "/v1" + bare, bare.replace("/v1/v1/", "/v1/"), bare.removeprefix("/v1")):
        known = (isinstance(route, Route) and route.path_regex.match(meant) for route in routes)
        if meant != path and any(known):
            return f" Did you mean {meant[:200]}? The base URL of an OpenAI client ends in /v1."
    return ""
