"""`/reef/status`: every service's own status, the heads and the serving nodes, in one answer."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson

from reefcommon.ops import Health
from services.gateway.domain.routing import RoutingTable

TIMEOUT_S = 1.5


@dataclass
class SystemStatus:
    """Asks all services at once; one that does not answer is shown as such."""

    health: Health
    table: RoutingTable
    services: dict[str, str]
    engines: Callable[[], list[dict[str, Any]]]

    async def read(self) -> dict[str, Any]:
        """The whole picture."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=TIMEOUT_S), trust_env=False) as session:
            answers = await asyncio.gather(*(self._ask(session, url) for url in self.services.values()))
        services = {"gateway": await self.health.status(), **dict(zip(self.services, answers, strict=True))}
        heads = {}
        for scenario in self.table.scenarios():
            head = self.table.head(scenario)
            if head is not None:
                heads[scenario] = {
                    "release_id": head.release_id,
                    "sequence": head.sequence,
                    "load_id": head.load_id,
                    "adapter": head.adapter,
                    "operation": head.operation,
                    "created_at": head.created_at,
                }
        return {"services": services, "heads": heads, "engines": self.engines()}

    async def _ask(self, session: aiohttp.ClientSession, url: str) -> dict[str, Any]:
        try:
            async with session.get(f"{url.rstrip('/')}/status") as response:
                body = orjson.loads(await response.read())
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            return {"failures": {"http": f"{url} does not answer: {error!r}"}}
        return body if isinstance(body, dict) else {"failures": {"http": f"{url}/status is not an object"}}
