"""Errors as OpenAI clients expect them, with vLLM's type names: `{"error": {message, type, param, code}}`."""

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from services.engine.domain.errors import (
    ClientLeftError,
    EngineStoppedError,
    ForbiddenError,
    InvalidRequestError,
    NotServedError,
    OverloadedError,
    WeightTransferError,
    WeightUpdateError,
)

RETRY_AFTER_S = 1


def error_body(status: int, kind: str, message: str, param: str | None = None) -> dict[str, object]:
    """The error object of an answer or of a stream."""
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def describe(error: Exception) -> tuple[int, dict[str, object]]:
    """HTTP status and body of one of our errors."""
    message = str(error)
    match error:
        case InvalidRequestError():
            return 400, error_body(400, "BadRequestError", message, error.param)
        case NotServedError():
            return 404, error_body(404, "NotFoundError", message, error.param)
        case ForbiddenError():
            return 401, error_body(401, "AuthenticationError", message)
        case ClientLeftError():
            return 499, error_body(499, "ClientClosedRequest", message)
        case WeightUpdateError():
            return 409, error_body(409, "ConflictError", message)
        case OverloadedError() | EngineStoppedError():
            return 503, error_body(503, "ServiceUnavailableError", message)
        case _:
            return 500, error_body(500, "InternalServerError", message)


def install(app: FastAPI) -> None:
    """Register a handler for each of our errors and for FastAPI's own."""
    for kind in (
        ClientLeftError,
        ForbiddenError,
        InvalidRequestError,
        NotServedError,
        OverloadedError,
        EngineStoppedError,
        WeightUpdateError,
        WeightTransferError,
        RuntimeError,
    ):
        app.add_exception_handler(kind, _ours)
    app.add_exception_handler(RequestValidationError, _unreadable)
    app.add_exception_handler(HTTPException, _http)


async def _ours(_request: Request, error: Exception) -> Response:
    status, body = describe(error)
    headers = {"retry-after": str(RETRY_AFTER_S)} if status == 503 else {}
    return json_response(body, status, headers)


async def _unreadable(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    path = [str(part) for part in first["loc"] if part not in {"body", "query"}]
    # Union types put the tried alternative into the path; the field's own name comes first and is what helps.
    param = path[0] if path else None
    message = f"{param}: {first['msg']}" if param else str(first["msg"])
    return json_response(error_body(400, "BadRequestError", message, param), 400)


async def _http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return json_response(
        error_body(error.status_code, "HTTPError", str(error.detail)), error.status_code
    )


def json_response(
    body: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """orjson, with integer keys allowed (prompt_logprobs is keyed by token id)."""
    content = orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS)
    return Response(content, status, headers, media_type="application/json")
