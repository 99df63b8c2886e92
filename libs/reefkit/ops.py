"""The operations endpoints of every service, and its main function."""

import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar

import orjson
import structlog
import uvicorn
from prometheus_client import Gauge, generate_latest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from reefcommon.errors import BadConfig, Unavailable
from reefcommon.settings import ServiceSettings, SystemSettings
from reefkit import kafka_sequences, kafka_uvloop
from reefkit.bus import Bus, lags
from reefkit.telemetry import METRICS_CONTENT_TYPE, set_up

log = structlog.get_logger()

LAG = Gauge(
    "reef_consumer_lag_events",
    "events of the partitions assigned to this process that are not handled yet",
    ["service", "topic"],
)

Own = TypeVar("Own", bound=ServiceSettings)
"""The settings class of a service."""
Check = Callable[[], Awaitable[str | None]]
"""Returns None if all is well, else the fault and how to mend it."""


@dataclass(slots=True)
class Health:
    """The state of a service: readiness from `checks`, `/status` from `facts`.

    `last_error` may be over: `last_error_at` says when it was last seen.
    """

    service: str
    checks: dict[str, Check] = field(default_factory=dict)
    facts: dict[str, Callable[[], Any]] = field(default_factory=dict)
    broker: Bus | None = None
    started_at: float = field(default_factory=time.time)
    last_error: str | None = None
    last_error_at: datetime | None = None
    _was_ready: bool = False

    def note(self, error: str) -> None:
        self.last_error, self.last_error_at = error, datetime.now(UTC)

    async def failures(self) -> dict[str, str]:
        """Run the checks; return the reason of each failed check."""
        checked = {name: await check() for name, check in self.checks.items()}
        found = {name: reason for name, reason in checked.items() if reason is not None}
        if self.broker is not None:
            guard = self.broker.guard
            found |= guard.waits.shown()
            if guard.limit.reason is not None:
                found["dead_letters"] = guard.limit.reason
        if found:
            self.note("; ".join(f"{name}: {reason}" for name, reason in found.items()))
        # A dependency that was waited for before the first readiness is no error afterwards.
        elif not self._was_ready:
            self._was_ready, self.last_error, self.last_error_at = True, None, None
        return found

    async def lag(self) -> dict[str, int]:
        """Return the unhandled events by topic. Empty if the broker does not answer."""
        by_topic = Counter[str]()
        try:
            # Minutes-old lags are better than none: a busy machine answers late.
            for row in await lags(self.broker, max_age_s=120.0) if self.broker else ():
                by_topic[row.topic] += row.lag
        except Unavailable as error:
            self.note(str(error))
        # A partition that went to another process is counted there.
        LAG.clear()
        for topic, events in by_topic.items():
            LAG.labels(self.service, topic).set(events)
        return by_topic

    async def status(self) -> dict[str, Any]:
        return {
            "service": self.service,
            "uptime_s": round(time.time() - self.started_at, 1),
            "failures": await self.failures(),
            "lag": await self.lag(),
            "last_error": self.last_error,
            "last_error_at": self.last_error_at,
            **{name: fact() for name, fact in self.facts.items()},
        }


def ops_routes(health: Health) -> list[Route]:
    """Build the four endpoints, for any Starlette application."""

    async def healthz(_request: Request) -> Response:
        return _json({"status": "alive", "service": health.service})

    async def readyz(_request: Request) -> Response:
        failures = await health.failures()
        return _json({"ready": not failures, "failures": failures}, status=503 if failures else 200)

    async def metrics(_request: Request) -> Response:
        await health.lag()
        return Response(generate_latest(), media_type=METRICS_CONTENT_TYPE)

    async def status(_request: Request) -> Response:
        return _json(await health.status())

    return [
        Route("/healthz", healthz),
        Route("/readyz", readyz),
        Route("/metrics", metrics),
        Route("/status", status),
    ]


def serve(service: str, own: type[Own], build: Callable[[SystemSettings, Own], ASGIApp]) -> int:
    """Run a service on the settings in its environment, and return its exit status.

    It is 2, with the fault on stderr, if a setting is unusable.
    """
    try:
        system, settings = SystemSettings.load(), own.load()
        set_up(service, otlp_endpoint=system.otlp_endpoint)
        app = build(system, settings)
    except BadConfig as error:
        sys.stderr.write(f"{service} cannot start: {error}\n")
        return 2
    port = settings.port or system.port_of(service)
    run(app, host=system.bind_host, port=port, drain_s=settings.drain_s)
    return 0


def run(app: ASGIApp, *, host: str, port: int, drain_s: int = 15) -> None:
    """Serve until SIGTERM or SIGINT, then drain for at most `drain_s` seconds and exit with 0."""
    set_up_process()
    kafka_uvloop.mend()
    kafka_sequences.mend()
    uvicorn.run(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=drain_s,
        loop="uvloop",
        lifespan="on",
    )


def set_up_process() -> None:
    """End with 0 on SIGTERM, and allow as many connections as the system lets this user have."""
    # uvicorn raises the signal again after its clean shutdown.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    # Most systems begin with 1,024, of which a client and its answer's node take two.
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _json(body: object, status: int = 200) -> Response:
    return Response(orjson.dumps(body, default=str), status, media_type="application/json")
