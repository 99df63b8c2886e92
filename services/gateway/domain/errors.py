"""Refusals in the API's own shape: `{"error": {"message", "type", "code", "param"}}`."""

from dataclasses import dataclass, field
from typing import Any

import orjson

_TYPES = {401: "authentication_error", 403: "permission_error", 409: "conflict_error"}
_TYPES |= {429: "rate_limit_error", 501: "invalid_request_error"}
_CODES = {400: "invalid_value", 404: "not_found", 413: "body_too_large", 422: "invalid_value"}
_CODES |= {429: "rate_limit_exceeded", 503: "overloaded"}
# OpenAI's code, by which agents know that they have to shorten a conversation. vLLM and SGLang say
# it in words alone.
TOO_LONG = "context_length_exceeded"


@dataclass(eq=False)  # Python hashes exceptions
class ApiError(Exception):
    """A refusal: status, words that say what to do, code, and the field at fault."""

    status: int
    message: str
    code: str = field(kw_only=True)
    param: str | None = field(default=None, kw_only=True)
    retry_after_s: int | None = field(default=None, kw_only=True)
    allow: str | None = field(default=None, kw_only=True)

    def __str__(self) -> str:
        return self.message

    def body(self) -> bytes:
        """Return the JSON of the answer."""
        return orjson.dumps({"error": _shape(self.status, self.message, self.code, self.param)})

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers that go with the body."""
        found = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            found.append((b"retry-after", str(self.retry_after_s).encode()))
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        if self.allow is not None:
            found.append((b"allow", self.allow.encode()))
        return found


class UpstreamFailed(ApiError):
    """No serving node answered, or its answer broke off."""


def invalid_answer(words: str) -> UpstreamFailed:
    """502: the answer of the serving node cannot be used."""
    return UpstreamFailed(502, f"The serving node {words}.", code="upstream_invalid")


def answer_too_large() -> UpstreamFailed:
    """502: the answer passed its limit."""
    words = "The serving node's answer went on past its limit (max_answer_bytes)."
    return UpstreamFailed(502, words, code="upstream_too_large")


def relayed(status: int, error: Any) -> dict[str, Any]:
    """Return an upstream's error in the API's shape."""
    if isinstance(error, dict) and isinstance(error.get("error"), dict):
        error = error["error"]
    if not isinstance(error, dict):
        words = error if isinstance(error, str) else f"the serving node: {error!r:.300}"
        error = {"message": words}
    # engines put numbers and names of classes into these
    message, kind, code = error.get("message"), error.get("type"), error.get("code")
    if status == 400 and isinstance(message, str) and "context length" in message:
        code = TOO_LONG
        error = {**error, "code": code}
    if isinstance(message, str) and str(kind).endswith("_error") and not isinstance(code, int):
        return {"code": None, "param": None, **error}
    if isinstance(code, int) and 400 <= code < 600:
        status = code
    param = error.get("param")
    return _shape(
        status,
        message if isinstance(message, str) else f"{message or error!r:.300}",
        code if isinstance(code, str) else _CODES.get(status, "upstream_failed"),
        param if isinstance(param, str) else None,
    )


def _shape(status: int, message: str, code: str, param: str | None) -> dict[str, Any]:
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"message": message, "type": kind, "code": code, "param": param}


def invalid(param: str | None, message: str) -> ApiError:
    """400: a field is wrong."""
    return ApiError(400, message, code="invalid_value", param=param)


def model_not_found(model: str, served: str) -> ApiError:
    """404: another model is asked for than the gateway serves."""
    words = (
        f"The model {model[:80]!r} does not exist; this gateway serves {served!r}. "
        "The settings gateway.model_aliases and serving.model_map let it answer to further names."
    )
    return ApiError(404, words, code="model_not_found", param="model")


def no_scenario(scenario: str, param: str = "scenario") -> ApiError:
    """404: the scenario does not exist."""
    words = (
        f"There is no scenario {scenario!r}. Create it with POST /reef/scenarios, "
        "or set gateway.implicit_scenarios."
    )
    return ApiError(404, words, code="scenario_not_found", param=param)


NOT_DURABLE = "not_durable"


def not_durable() -> ApiError:
    """503: the exchange could not be recorded."""
    words = (
        "The exchange could not be recorded durably, so its answer is withheld. Try again; "
        "the operator finds the reason under /readyz."
    )
    return ApiError(503, words, code=NOT_DURABLE, retry_after_s=2)


def no_room() -> ApiError:
    """503: the broker is away, and the spool has no room for another event."""
    words = (
        "No more can be recorded until the broker is back; the request was not begun. Try later; "
        "the operator finds the reason under /readyz."
    )
    return ApiError(503, words, code="spool_full", retry_after_s=5)
