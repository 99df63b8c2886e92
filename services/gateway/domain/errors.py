"""Refusals in the API's own shape: `{"error": {"message", "type", "code", "param"}}`."""

import orjson

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "invalid_request_error",
    405: "invalid_request_error",
    408: "invalid_request_error",
    409: "conflict_error",
    413: "invalid_request_error",
    414: "invalid_request_error",
    429: "rate_limit_error",
    431: "invalid_request_error",
    501: "invalid_request_error",
}


class ApiError(Exception):
    """What a client is told: status, words that say what to do, a code for programs, and the field where one is at fault."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str,
        param: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.param = param
        self.retry_after_s = retry_after_s

    def body(self) -> bytes:
        """The JSON of the answer."""
        kind = _TYPES.get(self.status, "server_error")
        return orjson.dumps(
            {
                "error": {
                    "message": self.message,
                    "type": kind,
                    "code": self.code,
                    "param": self.param,
                }
            }
        )

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The headers that go with the body."""
        found = [(b"content-type", b"application/json")]
        if self.retry_after_s is not None:
            found.append((b"retry-after", str(self.retry_after_s).encode()))
        if self.status == 401:
            found.append((b"www-authenticate", b"Bearer"))
        return found


def invalid(param: str | None, message: str) -> ApiError:
    """400: a field is wrong."""
    return ApiError(400, message, code="invalid_value", param=param)


NOT_DURABLE = "not_durable"


def not_durable() -> ApiError:
    """503: the exchange could not be recorded, so nothing is pretended."""
    return ApiError(
        503,
        "The exchange could not be recorded durably, so its answer is withheld. Try again in a moment; "
        "the operator finds the reason under /readyz.",
        code=NOT_DURABLE,
        retry_after_s=2,
    )


def no_room() -> ApiError:
    """503: the broker is away and the gateway's own disk has no room for another event."""
    return ApiError(
        503,
        "Nothing more can be recorded until the broker is back, so nothing was done. Try again later; "
        "the operator finds the reason under /readyz.",
        code="spool_full",
        retry_after_s=5,
    )


def command_not_sent(command_id: str) -> ApiError:
    """503: commands need the broker; unlike exchanges and reports they do not wait on the gateway's disk."""
    return ApiError(
        503,
        f"The broker did not acknowledge the command {command_id}. Try again when it is back; /readyz and /reef/status say whether it is.",
        code="broker_unavailable",
        retry_after_s=5,
    )
