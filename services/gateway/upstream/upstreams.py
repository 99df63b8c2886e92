"""Who answers a request: the serving nodes, or endpoints of `models:`, in the scenario's order."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog

from reefcommon.config import ServeConfig
from reefcommon.config_sections import SERVED
from reefcommon.config_serving import ServingSection
from reefkit.recipes.endpoint import key_of
from services.gateway.domain.errors import ApiError
from services.gateway.domain.exchange import Asked, Exchange
from services.gateway.ports import EngineAnswer, Engines
from services.gateway.upstream.providers import Provider
from services.gateway.upstream.routing import Routing

log = structlog.get_logger()

# Of a limit or of the endpoint, not of the request. Nothing has reached the client yet.
NEXT = frozenset({429, 500, 501, 502, 503, 504, 529})


@dataclass(slots=True)
class Upstreams:
    """Engines that ask the next entry if one fails before its first byte."""

    engines: Engines
    section: ServingSection = field(default_factory=ServingSection)
    providers: Mapping[str, Provider] = field(default_factory=dict)
    routing: Routing | None = None

    async def open(self, exchange: Exchange) -> EngineAnswer:
        own = exchange.model, exchange.asked
        *before, last = self._order(exchange)
        for name in before:
            try:
                answer = await self._ask(name, exchange, own)
            except ApiError as error:
                if error.status not in NEXT:
                    raise
                reason = error.message
            else:
                if answer.status not in NEXT:
                    return answer
                await answer.close(finished=False)
                reason = f"status {answer.status}"
            log.warning("upstream_passed_over", upstream=name, reason=reason)
        return await self._ask(last, exchange, own)

    async def _ask(self, name: str, exchange: Exchange, own: tuple[str, Asked]) -> EngineAnswer:
        exchange.model, exchange.asked = own
        if name != SERVED:
            # Its answer is not that of a release.
            exchange.asked = exchange.asked._replace(fingerprint=None)
            return await self.providers[name].ask(exchange)
        exchange.provider = ""
        try:
            return await self.engines.open(exchange)
        except ApiError as error:
            if exchange.head is None or error.code != "release_not_served":
                raise
        if exchange.release is not None and self.routing is not None:
            self.routing.lacks(exchange.release)
        exchange.fall_to_head()
        return await self.engines.open(exchange)

    def _order(self, exchange: Exchange) -> tuple[str, ...]:
        named = self.section.model_map.get(exchange.asked.model or "")
        order = named or self.section.upstreams_of(exchange.scenario)
        # A release that is asked for by name is that of the nodes.
        return (SERVED,) if exchange.pinned and SERVED in order else order

    def rows(self) -> list[dict[str, Any]]:
        now = time.monotonic()
        return [*self.engines.rows(), *(provider.row(now) for provider in self.providers.values())]


def providers_of(
    config: ServeConfig | None, *, connect_timeout_s: float, max_answer_bytes: int
) -> dict[str, Provider]:
    """Return the endpoints that may answer users. Raises BadConfig if a key cannot be read."""
    limits: Any = {"connect_timeout_s": connect_timeout_s, "max_answer_bytes": max_answer_bytes}
    if config is None:
        return {}
    entries = {name: config.models[name] for name in sorted(config.serving.asked - {SERVED})}
    return {name: Provider(name, one, key_of(name, one), **limits) for name, one in entries.items()}
