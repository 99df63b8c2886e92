"""From an HTTP request to an exchange: its caller, scenario, release and receipt."""

import re
import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from typing import Any

from reefcommon.events import Release
from reefcommon.ids import digest, is_receipt, new_record_id
from services.gateway.domain.access import Access, Grant
from services.gateway.domain.errors import ApiError, invalid, model_not_found, no_scenario
from services.gateway.domain.exchange import (
    INFERENCE,
    Api,
    Exchange,
    asked_of,
    caller_of,
    parse,
    shard_for,
    tags_of,
    truth,
)
from services.gateway.domain.heads import HeadTable
from services.gateway.domain.report import check_scenario
from services.gateway.domain.sampling import requested
from services.gateway.domain.upstream_body import upstream_body
from services.gateway.upstream.harnesses import Harnesses
from services.gateway.upstream.routing import Routing

DEFAULT = "default"
_TRACEPARENT = re.compile(rb"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")

RawHeaders = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Intake:
    """Makes an exchange of a request."""

    access: Access
    table: HeadTable
    base_model: str
    # makes a scenario exist and returns its head, or None if that takes long
    create: Callable[[str], Awaitable[Release | None]]
    harnesses: Harnesses
    routing: Routing
    implicit_scenarios: bool = False
    # further names of the model, and of other models that answer
    aliases: tuple[str, ...] = ()
    mapped: Collection[str] = ()

    async def exchange(
        self,
        path: str,
        raw: bytes,
        raw_headers: RawHeaders,
        headers: dict[bytes, bytes],
        grant: Grant,
    ) -> Exchange:
        """Return the exchange, ready for the engine. Raises ApiError."""
        started, api = time.time(), INFERENCE[path]
        scenario = scenario_of(headers)
        grant.check("infer", scenario)
        body = self._parse(api, raw)
        head = self.table.head(scenario)
        if head is None:  # the first request of a scenario
            del body  # not kept decoded during the wait
            head = await self._missing(scenario)
            body = self._parse(api, raw)
        tags, session_tag = tags_of(raw_headers, headers)
        capture = flag_of(headers, "x-reef-capture", default=True) and api != "embeddings"
        key = client_key(headers) if capture else None
        caller = caller_of(grant.bearer, body)
        shard = shard_for(api, scenario, session_tag, body, caller)
        pin = headers.get(b"x-reef-release-id")
        if pin is not None:
            release: Release | None = self._pinned(scenario, pin.decode("latin-1"))
        elif (release := head) is not None and api != "embeddings":
            # a conversation without a tag is known by its beginning
            release = await self.routing.release(release, session_tag or shard, tags)
        adapter = release.adapter if release and api != "embeddings" else None
        exchange = Exchange(
            api=api,
            path=path,
            raw=raw,
            scenario=scenario,
            capture=capture,
            tags=tags,
            session_tag=session_tag,
            session_end=flag_of(headers, "x-reef-session-end", default=False),
            shard=shard,
            asked=asked_of(api, body, self.base_model, release.release_id if release else None),
            traceparent=traceparent_of(headers),
            started=started,
            caller=caller,
            sampling=requested(body) if capture else None,
            release=release,
            pinned=pin is not None,
            model=adapter or self.base_model,
            keyed=key is not None,
            digest=digest("exchange", scenario, api, body) if key else None,
        )
        if api == "chat.completions" and flag_of(headers, "x-reef-harness", default=True):
            exchange.harness = await self.harnesses.add(body, release, session_tag)
            exchange.loads = self.harnesses.loads(release, session_tag)
        if head is not None and release is not head and pin is None:
            exchange.head = head, head.adapter or self.base_model
        exchange.upstream = upstream_body(exchange, body)
        exchange.use_receipt(key or new_record_id(shard))
        return exchange

    def _parse(self, api: Api, raw: bytes) -> dict[str, Any]:
        body = parse(api, raw)
        model = body.get("model")
        if not model or model == self.base_model or model in self.mapped:
            return body
        if not {model, "*"} & {*self.aliases}:
            raise model_not_found(model, self.base_model)
        return body

    def _pinned(self, scenario: str, release_id: str) -> Release:
        release = self.table.release(scenario, release_id)
        if release is None:
            words = (
                f"Release {release_id[:80]!r} of scenario {scenario!r} cannot be served; "
                f"see /reef/scenarios/{scenario}/releases."
            )
            raise ApiError(409, words, code="release_not_served", param="x-reef-release-id")
        return release

    async def _missing(self, scenario: str) -> Release | None:
        if not self.table.filled:  # the base model may be another than the one that was released
            words = "The release heads could not be read yet; try again."
            raise ApiError(503, words, code="heads_unavailable", retry_after_s=2)
        self.table.check(scenario)
        if scenario != DEFAULT and not self.implicit_scenarios:
            raise no_scenario(scenario, "x-reef-scenario")
        return await self.create(scenario)


def scenario_of(headers: dict[bytes, bytes]) -> str:
    """Return the scenario that a request names, or `default`. Raises ApiError."""
    name = headers.get(b"x-reef-scenario")
    return DEFAULT if name is None else check_scenario(name.decode("latin-1"))


def flag_of(headers: dict[bytes, bytes], name: str, *, default: bool) -> bool:
    """Return the boolean of a header. Raises ApiError if it is no boolean."""
    flag = headers.get(name.encode())
    return default if flag is None else truth(flag.decode("latin-1").strip(), name)


def traceparent_of(headers: dict[bytes, bytes]) -> str:
    """Return the caller's W3C trace if it is well-formed, else an empty text."""
    value = headers.get(b"traceparent")
    return value.decode() if value and _TRACEPARENT.fullmatch(value) else ""


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
