"""From an HTTP request to an exchange: who asks, in which scenario, served by which release, under which receipt."""

import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from reefcommon.events import Release
from reefcommon.ids import digest, is_receipt, new_record_id, shard_in
from services.gateway.domain.access import Access, Grant
from services.gateway.domain.errors import ApiError, invalid
from services.gateway.domain.exchange import (
    Api,
    Exchange,
    asked_of,
    parse,
    shard_for,
    tags_of,
    upstream_body,
)
from services.gateway.domain.report import check_scenario
from services.gateway.domain.routing import RoutingTable

DEFAULT = "default"
_TRACEPARENT = re.compile(r"^00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$")

RawHeaders = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Intake:
    """What is needed to make an exchange of a request. `create` makes a scenario exist; it returns its head, or None if that takes long."""

    access: Access
    table: RoutingTable
    base_model: str
    create: Callable[[str], Awaitable[Release | None]]
    implicit_scenarios: bool = False

    def grant(self, headers: dict[bytes, bytes]) -> Grant:
        """What the bearer may do. Raises ApiError (401)."""
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
        """Everything that is known before the engine is asked. Raises ApiError."""
        started = time.time()
        scenario = scenario_of(headers)
        grant.check("infer", scenario)
        body = parse(api, raw)
        head = self.table.head(scenario)
        if head is None:
            del body  # not kept decoded while somebody else is waited for
            head = await self._missing(scenario)
            body = parse(api, raw)
        release, pinned = self._release(scenario, head, headers.get(b"x-reef-release-id"))
        tags, session_tag = tags_of(raw_headers, headers)
        capture = api != "embeddings" and _wants_record(headers.get(b"x-reef-capture", b"true"))
        key = client_key(headers) if capture else None
        shard = shard_for(api, scenario, session_tag, body)
        x = Exchange(
            api=api,
            path=path,
            raw=raw,
            scenario=scenario,
            capture=capture,
            tags=tags,
            session_tag=session_tag,
            shard=shard,
            record_id=key or new_record_id(shard),
            asked=asked_of(api, body),
            traceparent=traceparent_of(headers),
            started=started,
            release=release,
            pinned=pinned,
            model=self.base_model
            if release is None or release.adapter is None or api == "embeddings"
            else release.adapter,
            keyed=key is not None,
            digest=digest("exchange", scenario, api, body) if key else None,
        )
        x.upstream = upstream_body(x, body)
        x.headers = receipt_headers(x)
        return x

    def _release(
        self, scenario: str, head: Release | None, pin: bytes | None
    ) -> tuple[Release | None, bool]:
        if pin is None:
            return head, False
        release_id = pin.decode("latin-1")
        release = self.table.release(scenario, release_id)
        if release is None:
            raise ApiError(
                409,
                f"Release {release_id[:80]!r} of scenario {scenario!r} cannot be served; see /reef/scenarios/{scenario}/releases.",
                code="release_not_served",
                param="x-reef-release-id",
            )
        return release, True

    async def _missing(self, scenario: str) -> Release | None:
        if (
            not self.table.filled
        ):  # serving the base model instead would be another model than the one that was released
            raise ApiError(
                503,
                "The release heads could not be read yet; try again.",
                code="heads_unavailable",
                retry_after_s=2,
            )
        self.table.check(scenario)
        if scenario != DEFAULT and not self.implicit_scenarios:
            raise ApiError(
                404,
                f"There is no scenario {scenario!r}. Create it with POST /reef/scenarios, or set gateway.implicit_scenarios.",
                code="scenario_not_found",
                param="x-reef-scenario",
            )
        return await self.create(scenario)


def _wants_record(value: bytes) -> bool:
    """`x-reef-capture`. A word that is not understood is refused: somebody may have meant that nothing is kept."""
    word = value.strip().lower()
    if word not in {b"true", b"1", b"yes", b"on", b"false", b"0", b"no", b"off"}:
        raise invalid("x-reef-capture", "'x-reef-capture' is `true` or `false`.")
    return word in {b"true", b"1", b"yes", b"on"}


def scenario_of(headers: dict[bytes, bytes]) -> str:
    """The scenario that a request names, or `default`. Raises ApiError."""
    name = headers.get(b"x-reef-scenario")
    return DEFAULT if name is None else check_scenario(name.decode("latin-1"))


def traceparent_of(headers: dict[bytes, bytes]) -> str:
    """The caller's W3C trace, where it is well-formed."""
    value = headers.get(b"traceparent")
    if value is None:
        return ""
    text = value.decode("latin-1")
    return text if _TRACEPARENT.fullmatch(text) else ""


def client_key(headers: dict[bytes, bytes]) -> str | None:
    """The receipt that the client chose. Raises ApiError where it cannot be one."""
    value = headers.get(b"x-reef-agent-record-id")
    if value is None:
        return None
    key = value.decode("latin-1")
    if not is_receipt(key) or shard_in(key) is not None or key.startswith("rep-"):
        raise invalid(
            "x-reef-agent-record-id",
            "A receipt of the client's own is 1 to 128 letters, digits, or any of . _ : - and has not the form of Reef's own receipts.",
        )
    return key


def receipt_headers(x: Exchange) -> list[tuple[bytes, bytes]]:
    """What the client learns before the first byte of the body."""
    found = []
    if x.capture:
        found.append((b"x-reef-agent-record-id", x.record_id.encode()))
    if x.release is not None:
        found.append((b"x-reef-release-id", x.release.release_id.encode()))
    if x.session_tag is not None:
        found.append((b"x-reef-session-id", x.session_tag.encode("utf-8")))
    return found


def own_receipt(x: Exchange) -> None:
    """Put a failed attempt under a receipt of Reef's own, so that the client's stays free for the attempt that succeeds."""
    x.record_id = new_record_id(x.shard)
    x.headers = receipt_headers(x)
