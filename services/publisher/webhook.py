"""A webhook: an address of the operator is told that a release waits for a person."""

# The address comes from the settings alone, and no redirect is followed: no event, recipe or client
# decides where this process connects to. It has a consumer group of its own, so that an address
# that does not answer delays no publication.

import asyncio
import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import httpx
import structlog
from faststream.kafka import KafkaRoute
from prometheus_client import Counter
from pydantic import SecretStr

from reefcommon import topics
from reefcommon.errors import BadConfig
from reefcommon.events import Publication, ReleasePending, utc_now
from reefkit.bus import route
from reefkit.retry import RetryPolicy

log = structlog.get_logger()

SENT = Counter("reef_webhooks_total", "calls of the webhook for pending releases", ["outcome"])
TOO_OLD = timedelta(days=1)
_REASON_CHARS = 300


@dataclass(slots=True)
class Webhook:
    """Calls an address for each pending release, at least once, with some tries."""

    url: SecretStr
    retry: RetryPolicy = field(default_factory=lambda: RetryPolicy(1.0, 30.0, 5))
    timeout_s: float = 5.0
    transport: httpx.AsyncBaseTransport | None = None

    async def on_publication(self, event: Publication) -> None:
        """Tell of a pending release. Never raises for what the address does."""
        # A group that is new reads the log from its beginning.
        if not isinstance(event, ReleasePending) or utc_now() - event.at > TOO_OLD:
            return
        failures = 0
        while (fault := await self._post(body_of(event))) is not None:
            failures += 1
            if self.retry.exhausted(failures):
                SENT.labels("failed").inc()
                log.warning("webhook_failed", release=event.release.release_id, reason=fault)
                return
            await asyncio.sleep(self.retry.delay_s(failures))
        SENT.labels("sent").inc()

    async def _post(self, body: dict[str, str]) -> str | None:
        # The address may hold a token: no message has it.
        options: dict[str, Any] = {"transport": self.transport, "timeout": self.timeout_s}
        url = self.url.get_secret_value()
        try:
            async with (
                asyncio.timeout(2 * self.timeout_s),
                httpx.AsyncClient(trust_env=False, **options) as client,
                client.stream("POST", url, json=body) as answer,
            ):
                status = answer.status_code
        except (httpx.HTTPError, httpx.InvalidURL, OSError, TimeoutError) as error:
            return type(error).__name__
        return None if 200 <= status < 300 else f"status {status}"


def webhook_routes(url: SecretStr | None) -> tuple[KafkaRoute, ...]:
    """Return the route of the webhook, if there is an address. Raises BadConfig."""
    if url is None or not url.get_secret_value():
        return ()
    if not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url.get_secret_value()):
        raise BadConfig("REEF_PUBLISHER_WEBHOOK_URL must be of the form https://host/path")
    return (route(Webhook(url).on_publication, topics.RELEASES, group="publisher-webhook"),)


def body_of(event: ReleasePending) -> dict[str, str]:
    """Return the message. `id` is the same in a repeat."""
    release = event.release
    return {
        "type": event.type,
        "id": event.event_id,
        "at": event.at.isoformat(),
        "scenario": event.scenario,
        "release_id": release.release_id,
        "kind": release.kind,
        "reason": " ".join(release.reason.split())[:_REASON_CHARS],
        "promote": f"reef promote {event.scenario} {release.release_id}",
    }
