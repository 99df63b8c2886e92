"""A check of another endpoint's answer: it has the form of the API, or the next entry is asked."""

from services.gateway.domain.exchange import Api
from services.gateway.domain.jsontext import loads
from services.gateway.domain.sse import data_of


def is_answer(api: Api, raw: bytes) -> bool:
    """Return whether a whole answer has a first choice (embeddings: a first vector)."""
    try:
        body = loads(raw)
        first = body["data" if api == "embeddings" else "choices"][0]
    except (ValueError, LookupError, TypeError, RecursionError):
        return False
    named = {"chat.completions": "message", "completions": "text"}.get(api, "embedding")
    return isinstance(first, dict) and named in first


def begins_stream(frame: bytes) -> bool:
    """Return whether a stream may begin with a frame: a chunk without an error, or a comment."""
    data = data_of(frame)
    if not data:
        return bool(frame)
    try:
        chunk = loads(data)
        return isinstance(chunk["choices"], list) and not chunk.get("error")
    except (ValueError, LookupError, TypeError, RecursionError):
        return False
