"""From an HTTP request to an exchange: its caller, scenario, release and receipt."""

import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from reefcommon.events import Release
from reefcommon.ids import digest, is_receipt, new_record_id
from services.gateway.domain.access import Access, Grant
from services.gateway.domain.errors import ApiError, invalid, model_not_found
from services.gateway.domain.exchange import (
    Api,
    Exchange,
    asked_of,
    caller_of,
    parse,
    shard_for,
    tags_of,
    upstream_body,
)
from services.gateway.domain.report import check_scenario
from services.gateway.domain.routing import RoutingTable
from services.gateway.domain.sampling import requested

DEFAULT = "default"
_YES = frozenset({b"true", b"1", b"yes", b"on"})
_NO = frozenset({b"false", b"0", b"no", b"off"})
_TRACEPARENT = re.compile(r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")

RawHeaders = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Intake:
    """Makes an exchange of a request."""

    access: Access
    table: RoutingTable
    base_model: str
    # makes a scenario exist and returns its head, or None if that takes long
    create: Callable[[str], Awaitable[Release | None]]
    implicit_scenarios: bool = False
    # further names of the model
    aliases: tuple[str, ...] = ()

    def grant(self, headers: dict[bytes, bytes]) -> Grant:
        """Return the rights of the bearer. Raises ApiError (401)."""
        return self.access.grant(headers)

    async def exchange(
        self,
        api: Api,
        path: str,
        raw: bytes,
        raw_headers: RawHeaders,
        headers: dict[bytes, bytes],
        grant: Grant,
    ) -> Exchange:
        """Return the exchange, ready for the engine. Raises ApiError."""
        started = time.time()
        scenario = scenario_of(headers)
        grant.check("infer", scenario)
        body = self._parse(api, raw)
        head = self.table.head(scenario)
        if head is None:  # the first request of a scenario
            del body  # not kept decoded during the wait
            head = await self._missing(scenario)
            body = self._parse(api, raw)
        release, pinned = self._release(scenario, head, headers.get(b"x-reef-release-id"))
        tags, session_tag = tags_of(raw_headers, headers)
        capture = api != "embeddings" and _wants_record(headers.get(b"x-reef-capture", b"true"))
        key = client_key(headers) if capture else None
        caller = caller_of(grant.bearer, body)
        shard = shard_for(api, scenario, session_tag, body, caller)
        adapter = release.adapter if release and api != "embeddings" else None
        exchange = Exchange(
            api=api,
            path=path,
            raw=raw,
            scenario=scenario,
            capture=capture,
            tags=tags,
            session_tag=session_tag,
            shard=shard,
            record_id=key or new_record_id(shard),
            asked=asked_of(api, body, self.base_model, release.release_id if release else None),
            traceparent=traceparent_of(headers),
            started=started,
            caller=caller,
            sampling=requested(body) if capture else None,
            release=release,
            pinned=pinned,
            model=adapter or self.base_model,
            keyed=key is not None,
            digest=digest("exchange", scenario, api, body) if key else None,
        )
        exchange.upstream = upstream_body(exchange, body)
        exchange.headers = receipt_headers(exchange)
        return exchange

    def _parse(self, api: Api, raw: bytes) -> dict[str, Any]:
        body = parse(api, raw)
        model = body.get("model")
        if model and model != self.base_model and not {model, "*"} & {*self.aliases}:
            raise model_not_found(model, self.base_model)
        return body

    def _release(
        self, scenario: str, head: Release | None, pin: bytes | None
    ) -> tuple[Release | None, bool]:
        if pin is None:
            return head, False
        release_id = pin.decode("latin-1")
        release = self.table.release(scenario, release_id)
        if release is None:
            words = (
                f"Release {release_id[:80]!r} of scenario {scenario!r} cannot be served; "
                f"see /reef/scenarios/{scenario}/releases."
            )
            raise ApiError(409, words, code="release_not_served", param="x-reef-release-id")
        return release, True

    async def _missing(self, scenario: str) -> Release | None:
        if not self.table.filled:  # the base model may be another than the one that was released
            words = "The release heads could not be read yet; try again."
            raise ApiError(503, words, code="heads_unavailable", retry_after_s=2)
        self.table.check(scenario)
        if scenario != DEFAULT and not self.implicit_scenarios:
            words = (
                f"There is no scenario {scenario!r}. Create it with POST /reef/scenarios, "
                "or set gateway.implicit_scenarios."
            )
            raise ApiError(404, words, code="scenario_not_found", param="x-reef-scenario")
        return await self.create(scenario)


def _wants_record(value: bytes) -> bool:
    # An unknown word is refused: it may have meant that no record is kept.
    word = value.strip().lower()
    if word not in _YES and word not in _NO:
        raise invalid("x-reef-capture", "'x-reef-capture' is `true` or `false`.")
    return word in _YES


def scenario_of(headers: dict[bytes, bytes]) -> str:
    """Return the scenario that a request names, or `default`. Raises ApiError."""
    name = headers.get(b"x-reef-scenario")
    return DEFAULT if name is None else check_scenario(name.decode("latin-1"))


def traceparent_of(headers: dict[bytes, bytes]) -> str:
    """Return the caller's W3C trace if it is well-formed, else an empty text."""
    value = headers.get(b"traceparent")
    if value is None:
        return ""
    text = value.decode("latin-1")
    return text if _TRACEPARENT.fullmatch(text) else ""


def client_key(headers: dict[bytes, bytes]) -> str | None:
    """Return the receipt that the client chose. Raises ApiError if it cannot be one."""
    value = headers.get(b"x-reef-agent-record-id")
    if value is None:
        return None
    key = value.decode("latin-1")
    if not is_receipt(key) or key.startswith(("rec-", "rep-")):
        words = (
            "A receipt of the client's own is 1 to 128 letters, digits, or any of . _ : - "
            "and does not begin with rec- or rep-."
        )
        raise invalid("x-reef-agent-record-id", words)
    return key


def receipt_headers(exchange: Exchange) -> list[tuple[bytes, bytes]]:
    """Return the headers with receipt, release and session."""
    found = []
    if exchange.capture:
        found.append((b"x-reef-agent-record-id", exchange.record_id.encode()))
    if exchange.release is not None:
        found.append((b"x-reef-release-id", exchange.release.release_id.encode()))
    if exchange.session_tag is not None:
        found.append((b"x-reef-session-id", exchange.session_tag.encode("utf-8")))
    return found


def own_receipt(exchange: Exchange) -> None:
    """Put a failed attempt under a new receipt: the client's stays free for the next."""
    exchange.record_id = new_record_id(exchange.shard)
    exchange.headers = receipt_headers(exchange)
