"""What can be wrong with a request, and with the node."""


class InvalidRequestError(ValueError):
    """The request can never work as sent (HTTP 400). `param` names the field."""

    def __init__(self, param: str | None, message: str) -> None:
        super().__init__(message)
        self.param = param


class NotServedError(LookupError):
    """No such model or adapter here (HTTP 404)."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class ForbiddenError(PermissionError):
    """No API key, or a wrong one (HTTP 401)."""


class ClientLeftError(ConnectionError):
    """The client closed the connection before its answer was ready; nobody reads what is sent."""


class RequestFailedError(RuntimeError):
    """The model, the sampler or the tokenizer failed on this request (HTTP 500)."""


class OverloadedError(RuntimeError):
    """The waiting queue is full (HTTP 503 with Retry-After)."""


class EngineStoppedError(RuntimeError):
    """The generation loop has ended; nothing is served any more (HTTP 503)."""


class WeightUpdateError(RuntimeError):
    """A step of a weight update came out of order or does not fit the model (HTTP 409)."""


class WeightTransferError(RuntimeError):
    """A transfer broke off or timed out (HTTP 500). The live weights are untouched; begin again with the rendezvous."""
