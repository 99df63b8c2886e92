"""`/reef/status`: the status of every service, the heads and the serving nodes."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import orjson

from reefcommon.errors import Unavailable, said
from reefcommon.events import Release
from reefkit.ops import Health
from services.gateway.domain.access import Grant
from services.gateway.domain.errors import ApiError
from services.gateway.domain.heads import HeadTable
from services.gateway.upstream.pool import Pool

_SHOWN = {"release_id", "sequence", "load_id", "adapter", "operation", "created_at"}
HOSTS = ("trainer", "harness")
_STATE_TIMEOUT_S = 10.0
TIMEOUT_S = 1.5  # of one service; the answer waits for the slowest


@dataclass
class SystemStatus:
    """Asks all services at once. A service that does not answer is shown as failed."""

    health: Health
    table: HeadTable
    services: dict[str, str]
    engines: Callable[[], list[dict[str, Any]]]
    learns: Callable[[str], bool]
    """Whether a recipe learns from a scenario."""
    pending: Callable[[str], Awaitable[list[Release]]]
    """The releases of a scenario that wait for a person. Raises Unavailable."""
    held: Callable[[str], Awaitable[str | None]]
    """Why the winners of a scenario wait, or None. Raises Unavailable."""
    traffic: Callable[[Release], Awaitable[dict[str, dict[str, Any]]]]
    """The sessions of each release that a head's routing policy names."""

    async def read(self, grant: Grant) -> dict[str, Any]:
        """Return the whole picture; a token for some scenarios sees no words about others."""
        answers = await asyncio.gather(*map(_status_of, self.services.values()))
        own = await self.health.status()
        services = {"gateway": own, **dict(zip(self.services, answers, strict=True))}
        seen = [head for head in self.table.heads() if grant.sees(head.scenario)]
        facts = await asyncio.gather(*(self._facts(head) for head in seen))
        heads = {
            head.scenario: {**head.model_dump(include=_SHOWN), **more}
            for head, more in zip(seen, facts, strict=True)
        }
        engines = self.engines()
        if grant.scenarios is not None:
            services = {name: _narrow(facts) for name, facts in services.items()}
            engines = [{**row, "models": None} for row in engines]
        return {"services": services, "heads": heads, "engines": engines}

    async def _facts(self, head: Release) -> dict[str, Any]:
        # Only a recipe's winner waits.
        scenario, learns = head.scenario, self.learns(head.scenario)
        traffic = await self.traffic(head) if "routing" in head.contents else {}
        try:
            held = await self.held(scenario)
            waiting = await self.pending(scenario) if learns or held is not None else []
        except Unavailable:  # the services that need the heads say so
            held, waiting = None, []
        pending = [one.release_id for one in reversed(waiting)]
        return {"learns": learns, "held": held, "pending": pending, "traffic": traffic}

    async def recipes(self, scenario: str) -> dict[str, Any]:
        """Return the state of the recipes of a scenario, by binding.

        Raises ApiError if a host does not answer.
        """
        found: dict[str, Any] = {}
        for name in HOSTS:
            answer = await _get(self.services[name], f"/recipes/{scenario}", _STATE_TIMEOUT_S)
            if isinstance(answer, str):
                raise ApiError(503, f"The {name} does not answer.", code="host_unavailable")
            found |= answer
        return found

    async def ask(self, service: str, path: str) -> dict[str, Any] | str:
        """Return the object that a service answers with, or its fault."""
        return await _get(self.services[service], path, TIMEOUT_S)

    async def own(self, grant: Grant) -> dict[str, Any]:
        """Return the gateway's own status."""
        facts = await self.health.status()
        return facts if grant.scenarios is None else _narrow(facts)


async def _status_of(url: str) -> dict[str, Any]:
    body = await _get(url, "/status", TIMEOUT_S)
    return {"failures": {"http": body}} if isinstance(body, str) else body


async def _get(url: str, path: str, timeout_s: float) -> dict[str, Any] | str:
    """Return the object that a service answers with, or its fault."""
    pool = Pool(url, [], connect_timeout_s=TIMEOUT_S, read_timeout_s=timeout_s)
    try:
        status, text = await pool.get(path, timeout_s=timeout_s)
        body = orjson.loads(text)
    except (OSError, ValueError) as error:
        return f"{url} does not answer: {said(error)}"
    finally:
        pool.close()
    usable = isinstance(body, dict) and status < 300
    return body if usable else f"{url}{path} is not an object, status {status}"


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
