"""`/reef/status`: the status of every service, the heads and the serving nodes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from reefkit.ops import Health
from services.gateway.domain.access import Grant
from services.gateway.domain.routing import RoutingTable
from services.gateway.upstream.pool import Pool

_SHOWN = {"release_id", "sequence", "load_id", "adapter", "operation", "created_at"}
TIMEOUT_S = 1.5  # of one service; the answer waits for the slowest


@dataclass
class SystemStatus:
    """Asks all services at once. A service that does not answer is shown as failed."""

    health: Health
    table: RoutingTable
    services: dict[str, str]
    engines: Callable[[], list[dict[str, Any]]]
    learns: Callable[[str], bool]
    """Whether a recipe learns from a scenario."""

    async def read(self, grant: Grant) -> dict[str, Any]:
        """Return the whole picture; a token for some scenarios sees no words about others."""
        answers = await asyncio.gather(*map(_status_of, self.services.values()))
        own = await self.health.status()
        services = {"gateway": own, **dict(zip(self.services, answers, strict=True))}
        heads = {
            head.scenario: {**head.model_dump(include=_SHOWN), "learns": self.learns(head.scenario)}
            for head in self.table.heads()
            if grant.sees(head.scenario)
        }
        engines = self.engines()
        if grant.scenarios is not None:
            services = {name: _narrow(facts) for name, facts in services.items()}
            engines = [{**row, "models": None} for row in engines]
        return {"services": services, "heads": heads, "engines": engines}

    async def own(self, grant: Grant) -> dict[str, Any]:
        """Return the gateway's own status."""
        facts = await self.health.status()
        return facts if grant.scenarios is None else _narrow(facts)


async def _status_of(url: str) -> dict[str, Any]:
    pool = Pool(url, [], connect_timeout_s=TIMEOUT_S, read_timeout_s=TIMEOUT_S)
    try:
        _, text = await pool.get("/status", timeout_s=TIMEOUT_S)
        body = orjson.loads(text)
    except (OSError, ValueError) as error:
        return {"failures": {"http": f"{url} does not answer: {error!r}"}}
    finally:
        pool.close()
    wrong = {"failures": {"http": f"{url}/status is not an object"}}
    return body if isinstance(body, dict) else wrong


def _narrow(facts: dict[str, Any]) -> dict[str, Any]:
    # errors and facts may name scenarios that the token may not see
    why = "the reason is shown to tokens that are good for every scenario"
    return {
        "service": facts.get("service"),
        "uptime_s": facts.get("uptime_s"),
        "failures": dict.fromkeys(facts.get("failures") or {}, why),
        "lag": facts.get("lag") or {},
        "last_error": None,
        "last_error_at": None,
    }
