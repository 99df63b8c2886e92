"""A repeat answered from its record, if the key has no answer any more.

A stream comes in one chunk a choice.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from services.gateway.domain.answer import as_stream
from services.gateway.domain.errors import relayed
from services.gateway.domain.exchange import Exchange
from services.gateway.domain.jsontext import dumps, loads
from services.gateway.domain.keys import KeyEntry
from services.gateway.domain.sse import DONE

_JSON = (b"content-type", b"application/json")
_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")


def entry_of(found: Mapping[str, Any], exchange: Exchange | None = None) -> KeyEntry:
    """Return the key's entry from the log, with the answer if `exchange` is the same request."""
    kind: Literal["inference", "report"] = "report" if found["kind"] == "report" else "inference"
    digest, shard = found["digest"] or "", exchange.shard if exchange else ""
    entry = KeyEntry(digest, kind, found["scenario"], shard, "done")
    if kind == "report" or exchange is None or exchange.digest != entry.digest:
        return entry
    status, answer = _answer(found, exchange)
    headers = [
        _STREAM if found["stream"] and status == 200 else _JSON,
        *_headers(found, exchange),
        (b"content-length", b"%d" % len(answer)),
    ]
    return replace(entry, status=status, headers=tuple(headers), answer=answer)


def _headers(found: Mapping[str, Any], exchange: Exchange) -> list[tuple[bytes, bytes]]:
    # the release that answered then may not serve now
    release = found.get("release_id")
    names = [(name, value) for name, value in exchange.headers if name != b"x-reef-release-id"]
    return [*names, (b"x-reef-release-id", release.encode())] if release else names


def _answer(found: Mapping[str, Any], exchange: Exchange) -> tuple[int, bytes]:
    response, error = found.get("response"), found.get("error")
    if found["stream"]:
        complete = found["outcome"] == "ok"
        words = error or "the stream was not complete"
        failure = b"data: %b\n\n" % dumps({"error": relayed(502, words)})
        end = DONE if complete else failure
        return 200, as_stream(response or {}, exchange.api, exchange.asked, end)
    if response is not None:
        return found["status"] or 200, dumps(response)
    try:
        refusal = loads((error or "").encode())
    except (ValueError, RecursionError):
        refusal = error or "the exchange failed"
    return found["status"], dumps({"error": relayed(found["status"], refusal)})
