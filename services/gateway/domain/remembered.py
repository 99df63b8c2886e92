"""An exchange whose answer is no longer with its key, answered again from its record.

The same receipt, status and content; a stream comes in one chunk a choice, because its pieces were not kept.
"""

from collections.abc import Mapping
from typing import Any, Literal

import orjson

from services.gateway.domain import sse
from services.gateway.domain.exchange import Exchange
from services.gateway.domain.keys import KeyEntry

_JSON = (b"content-type", b"application/json")
_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")


def entry_of(found: Mapping[str, Any], x: Exchange | None = None) -> KeyEntry:
    """What the log says of a key, as the ledger would. `x`: who asks; the answer is made for the same request, and only for that."""
    kind: Literal["inference", "report"] = "report" if found["kind"] == "report" else "inference"
    entry = KeyEntry(
        digest=found["digest"] or "",
        kind=kind,
        scenario=found["scenario"],
        shard=x.shard if x else "",
        state="done",
    )
    if kind == "report" or x is None or x.digest != entry.digest:
        return entry
    status, answer = _answer(found, x)
    headers = [
        _STREAM if found["stream"] and status == 200 else _JSON,
        *_headers(found, x),
        (b"content-length", b"%d" % len(answer)),
    ]
    return KeyEntry(
        entry.digest, kind, entry.scenario, x.shard, "done", status, tuple(headers), answer
    )


def _headers(found: Mapping[str, Any], x: Exchange) -> list[tuple[bytes, bytes]]:
    """The release is the one that answered then, which may not be the one that serves now."""
    release = found.get("release_id")
    names = [(name, value) for name, value in x.headers if name != b"x-reef-release-id"]
    return [*names, (b"x-reef-release-id", release.encode())] if release else names


def _answer(found: Mapping[str, Any], x: Exchange) -> tuple[int, bytes]:
    response, error = found.get("response"), found.get("error")
    if found["stream"]:
        return 200, _stream(response or {}, found["outcome"], error, x)
    if response is not None:
        return found["status"] or 200, orjson.dumps(response)
    text = (error or "").encode()
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        text = orjson.dumps(
            {
                "error": {
                    "message": error or "the exchange failed",
                    "type": "reef_error",
                    "code": found["outcome"],
                }
            }
        )
    return found["status"], text


def _stream(whole: Mapping[str, Any], outcome: str, error: str | None, x: Exchange) -> bytes:
    head = {
        key: whole[key]
        for key in ("id", "object", "created", "model", "system_fingerprint")
        if key in whole
    }
    if x.api == "chat.completions":
        head["object"] = "chat.completion.chunk"
    frames = [{**head, "choices": [_chunk(choice, x)]} for choice in whole.get("choices", ())]
    if x.asked.usage and whole.get("usage") is not None:
        frames.append({**head, "choices": [], "usage": whole["usage"]})
    if outcome == "ok":
        frames.append({**head, "choices": [], "reef": {"agent_record_id": x.record_id}})
        return b"".join(map(_frame, frames)) + sse.DONE
    frames.append(
        {
            "error": {
                "message": error or "the stream was not complete",
                "type": "reef_error",
                "code": outcome,
            }
        }
    )
    return b"".join(map(_frame, frames))


def _chunk(choice: Mapping[str, Any], x: Exchange) -> dict[str, Any]:
    if x.api != "chat.completions":
        return dict(choice)
    message = dict(choice.get("message") or {})
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        message["tool_calls"] = [
            {"index": number, **call} for number, call in enumerate(calls) if isinstance(call, dict)
        ]
    return {**{key: value for key, value in choice.items() if key != "message"}, "delta": message}


def _frame(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"
