"""Errors in OpenAI's shape: `{"error": {message, type, param, code}}`."""

from http import HTTPStatus

import orjson
import structlog
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from services.engine.domain import errors

log = structlog.get_logger(__name__)
RETRY_AFTER_S = 1

_STATUS: dict[type[Exception], tuple[int, str]] = {
    errors.InvalidRequestError: (400, "invalid_value"),
    errors.NotServedError: (404, "model_not_found"),
    errors.ForbiddenError: (401, "invalid_api_key"),
    errors.ClientLeftError: (499, "client_closed_request"),
    errors.WeightUpdateError: (409, "weight_update_refused"),
    errors.OverloadedError: (503, "overloaded"),
    errors.EngineStoppedError: (503, "engine_stopped"),
    errors.RequestFailedError: (500, "request_failed"),
    errors.WeightTransferError: (500, "weight_transfer_failed"),
}
_TYPES = {401: "authentication_error", 409: "conflict_error"}


def error_body(status: int, code: str, message: str, param: str | None = None) -> dict[str, object]:
    kind = "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def describe(error: Exception) -> tuple[int, dict[str, object]]:
    """HTTP status and body of an error. An unexpected error is logged and gives 500."""
    if type(error) not in _STATUS:
        log.error("unexpected_error", exc_info=error)
    status, code = _STATUS.get(type(error), (500, "internal_error"))
    message = str(error) or type(error).__name__
    return status, error_body(status, code, message, getattr(error, "param", None))


async def handle(_request: Request, error: Exception) -> Response:
    return respond(error)


def respond(error: Exception) -> Response:
    """The answer for any exception."""
    if isinstance(error, RequestValidationError):
        return _unreadable(error)
    if isinstance(error, HTTPException):
        code = HTTPStatus(error.status_code).phrase.lower().replace(" ", "_")
        body = error_body(error.status_code, code, str(error.detail))
        return json_response(body, error.status_code, dict(error.headers or {}))
    status, body = describe(error)
    headers = {"retry-after": str(RETRY_AFTER_S)} if status == 503 else {}
    return json_response(body, status, headers)


def _unreadable(error: RequestValidationError) -> Response:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        detail = f"The request body is not valid JSON: {first['ctx']['error']}"
        return json_response(error_body(400, "invalid_json", detail), 400)
    path = [str(part) for part in first["loc"] if part not in {"body", "query"}]
    # The rest of the path names a tried alternative of a union, which helps nobody.
    param = path[0] if path else None
    message = f"{param}: {first['msg']}" if param else str(first["msg"])
    return json_response(error_body(400, "invalid_value", message, param), 400)


def json_response(
    body: object, status: int = 200, headers: dict[str, str] | None = None
) -> Response:
    """A JSON answer."""
    # orjson needs an option for integer keys: prompt_logprobs is keyed by token id.
    content = orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS)
    return Response(content, status, headers, media_type="application/json")
