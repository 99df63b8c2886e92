"""The control application: everything but the hot paths, in FastAPI, with the API's own error shape."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import structlog
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from reefcommon.errors import Unavailable
from reefcommon.ops import Health, ops_routes
from services.gateway.domain.errors import ApiError
from services.gateway.openapi import add_hot_paths
from services.gateway.routes import Desk, router

log = structlog.get_logger()

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def control_app(desk: Desk, health: Health, lifespan: Lifespan) -> FastAPI:
    """The application, with its lifespan: the only part of the gateway that uvicorn starts and stops."""
    app = FastAPI(title="Reef gateway", version="1", lifespan=lifespan, description="An OpenAI endpoint that learns from its traffic.")
    app.include_router(router(desk))
    app.router.routes.extend(ops_routes(health))
    app.add_exception_handler(ApiError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Unavailable, _unavailable)
    app.add_exception_handler(Exception, _failed)
    plain = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = add_hot_paths(plain())
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]
    return app


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
    path = [str(part) for part in first["loc"][1:]]
    return answer(ApiError(400, f"{'.'.join(path) or 'body'}: {first['msg']}", code="invalid_value", param=".".join(path) or None))


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return answer(
            ApiError(404, f"There is nothing at {request.method} {request.url.path}; /docs lists what there is.", code="not_found")
        )
    return answer(ApiError(error.status_code, str(error.detail), code="http_error"))


async def _unavailable(_request: Request, error: Exception) -> Response:
    log.warning("outside_system_unavailable", reason=str(error))
    message = "A part of Reef that this needs does not answer; try again. /reef/status says which."
    return answer(ApiError(503, message, code="unavailable", retry_after_s=2))


async def _failed(request: Request, error: Exception) -> Response:
    log.error("request_failed", route=request.url.path, exc_info=error)
    return answer(ApiError(500, "Reef failed on this request; the operator finds the reason in the log.", code="internal_error"))
