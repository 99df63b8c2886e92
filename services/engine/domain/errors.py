"""Errors of a request and of the node, with their HTTP status."""


class FieldError(Exception):
    """A field of the request is at fault, and `param` names it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequestError(FieldError, ValueError):
    """400: the field is wrong."""


def wrong(field: str, words: str) -> InvalidRequestError:
    """The error whose message is the field's name, then `words`."""
    return InvalidRequestError(field, f"{field} {words}")


class NotServedError(FieldError, LookupError):
    """404: no such model or adapter."""


class ForbiddenError(PermissionError):
    """401: no API key, or a wrong key."""


class ClientLeftError(ConnectionError):
    """499: the client left before its answer was ready."""


class RequestFailedError(RuntimeError):
    """500: model, sampler or tokenizer failed on this request."""


class OverloadedError(RuntimeError):
    """503 with Retry-After: the queue is full."""


class EngineStoppedError(RuntimeError):
    """503: the generation loop has ended."""


class WeightUpdateError(RuntimeError):
    """409: a step of a weight update is out of order or does not fit the model."""


class WeightTransferError(RuntimeError):
    """500: a transfer broke off; the live weights are untouched. Begin at the rendezvous."""
