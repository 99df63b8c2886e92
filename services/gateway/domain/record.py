"""The event of an exchange, encoded by hand.

Readers decode it as `reefcommon.events.InferenceRecorded`.
"""

from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson

from reefcommon.events import BodyRef
from services.gateway.domain.answer import Captured
from services.gateway.domain.exchange import Exchange


class Ending(NamedTuple):  # made faster than a frozen dataclass
    """The outcome of an exchange."""

    outcome: str
    status: int
    at: float
    duration_ms: float
    response: bytes | None = None  # as the client got it, of a stream as a unary answer
    captured: Captured | None = None
    error: str | None = None
    stream: bool = False
    first_token_ms: float | None = None
    sampling: dict[str, Any] | None = None


INLINE_EVENT_BYTES = 900 * 1024  # Kafka's default limit for a message is 1 MiB


_NO_TOKENS: dict[str, list[Any]] = {"token_ids": [], "logprobs": [], "weight_versions": []}


def body_of(exchange: Exchange, end: Ending) -> bytes:
    """Return request and response as a JSON object, if they are too large for the event."""
    request, response = (orjson.Fragment(part) for part in (exchange.raw, end.response or b"null"))
    return orjson.dumps({"request": request, "response": response})


def event_of(exchange: Exchange, end: Ending, claim: BodyRef | None = None) -> bytes:
    """Return the event as bytes. Request and response are embedded as they were sent."""
    # By hand: a model would validate what was just made, and encode bodies a second time.
    event: dict[str, Any] = {
        "type": "inference.recorded.v1",
        "event_id": exchange.record_id,
        "at": datetime.fromtimestamp(end.at, UTC),
        "scenario": exchange.scenario,
        "traceparent": exchange.traceparent,
        "api": exchange.api,
        "outcome": end.outcome,
        "tags": exchange.tags,
        "model": exchange.model,
        "engine": exchange.engine,
        "status": end.status,
        "stream": end.stream,
        "duration_ms": end.duration_ms,
    }
    if exchange.session_tag is not None:
        event["session_tag"] = exchange.session_tag
    if exchange.session_end:
        event["session_end"] = True
    if exchange.caller:
        event["caller"] = exchange.caller
    if exchange.release is not None:
        event["release_id"] = exchange.release.release_id
        if not exchange.provider and exchange.release.load_id:
            event["load_id"] = exchange.release.load_id
            event["loads"] = exchange.loads or exchange.release.loads
    if exchange.dialect:
        event["dialect"] = exchange.dialect
    if exchange.harness is not None:
        event["harness"] = exchange.harness.model_dump()
    if exchange.digest is not None:
        event["idempotency_digest"] = exchange.digest
    if claim is not None:
        event["body_ref"] = claim.model_dump()
    else:
        event["request"] = orjson.Fragment(exchange.raw)
    _add_ending(event, end, whole=claim is None)
    if exchange.provider and end.captured is not None:
        # Tokens of another model: nothing may train on them.
        event["prompt_token_ids"] = []
        event["completions"] = [{**one, **_NO_TOKENS} for one in end.captured.completions]
    return orjson.dumps(event)


def _add_ending(event: dict[str, Any], end: Ending, *, whole: bool) -> None:
    if end.sampling is not None:
        event["sampling"] = end.sampling
    if end.response is not None and whole:
        event["response"] = orjson.Fragment(end.response)
    if end.captured is not None:
        event["prompt_token_ids"] = end.captured.prompt_token_ids
        event["completions"] = end.captured.completions
        event["usage"] = end.captured.usage
    if end.error is not None:
        event["error"] = end.error
    if end.first_token_ms is not None:
        event["first_token_ms"] = end.first_token_ms
