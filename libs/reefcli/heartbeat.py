"""The lines of `reef serve` while it runs."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import httpx
from aiokafka.errors import KafkaError
from prometheus_client.parser import text_string_to_metric_families

from reefcli.loop_events import describe, follow
from reefcli.output import counted
from reefcommon.errors import Unavailable
from reefcommon.evaluation import HELD_OUT
from reefcommon.events import SampleRefused, utc_now
from reefkit.bodies import FilesystemBodies

# Twice within the 10 s after which a failure must be seen.
CHECK_EVERY_S = 5.0
# Long enough that a busy gateway does not fill the terminal.
TRAFFIC_EVERY_S = 30.0
_AGAIN_AFTER_S = 5.0
_COUNTED = "reef_gateway_requests_total"
_REFUSED = {
    HELD_OUT: "held out, to judge candidates by", "stale": "of weights that are too old",
    "already_trained": "trained on before", "score_out_of_range": "with a score out of range",
}  # fmt: skip
_MODEL_ROUTES = "/v1/"


@dataclass(slots=True)
class Heartbeat:
    """Follows a running stack. `services`: name -> URL of each service's ops endpoints; `since`:
    older events were told by an earlier run.
    """

    bootstrap: str
    bodies: FilesystemBodies
    services: Mapping[str, str]
    say: Callable[[str], None]
    since: datetime = field(default_factory=utc_now)
    _failing: dict[str, str] = field(default_factory=dict)
    _refused: Counter[str] = field(default_factory=Counter)
    _answered: tuple[float, float] | None = None

    async def run(self) -> None:
        async with (
            httpx.AsyncClient(timeout=10.0, trust_env=False) as http,
            asyncio.TaskGroup() as group,
        ):
            for work in (self._events(), self._checks(http), self._traffic(http)):
                group.create_task(work)

    async def _events(self) -> None:
        while True:
            try:
                async for event in follow(self.bootstrap, self.bodies, self.since):
                    self.since = max(self.since, event.at)
                    # Refusals come by the batch: they are summed up with the traffic.
                    if isinstance(event, SampleRefused):
                        self._refused[event.reason] += 1
                    elif (line := describe(event)) is not None:
                        self.say(line)
            except (KafkaError, Unavailable):  # the broker restarts; its own line says so
                await asyncio.sleep(_AGAIN_AFTER_S)

    async def _checks(self, http: httpx.AsyncClient) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            for name, url in self.services.items():
                reason = await _why_not_ready(http, url)
                # The same reason is told once, not every five seconds.
                if reason != self._failing.get(name, ""):
                    self.say(f"{name} is {f'not ready: {reason}' if reason else 'ready again'}")
                self._failing[name] = reason

    async def _traffic(self, http: httpx.AsyncClient) -> None:
        while True:
            await self.tell_traffic(http)
            await asyncio.sleep(TRAFFIC_EVERY_S)

    async def tell_traffic(self, http: httpx.AsyncClient) -> None:
        """Print the requests since the last call, and the samples that were refused."""
        try:
            text = (await http.get(f"{self.services.get('gateway', '')}/metrics")).text
        except (httpx.HTTPError, httpx.InvalidURL):
            return
        now, before = _answered(text), self._answered
        self._answered = now
        # A restarted gateway counts from 0: the difference is negative, and no line is due.
        if before is not None and (total := now[0] - before[0]) > 0:
            failed = now[1] - before[1]
            rate = total / TRAFFIC_EVERY_S
            self.say(f"traffic  {counted(int(total), 'request')} in {TRAFFIC_EVERY_S:.0f} s "
                     f"({rate:.1f} a second), {failed:.0f} failed")  # fmt: skip
        if self._refused:
            most = self._refused.most_common(4)
            why = ", ".join(f"{count} {_REFUSED.get(reason, reason)}" for reason, count in most)
            self.say(f"refused  {counted(self._refused.total(), 'sample')} for training: {why}")
            self._refused.clear()


async def _why_not_ready(http: httpx.AsyncClient, url: str) -> str:
    try:
        answer = await http.get(f"{url}/readyz")
        failures = answer.json().get("failures", {}) if answer.status_code != 200 else {}
    except httpx.TimeoutException:
        return ""  # slow, not dead: if its process ends, the supervisor says so
    except (httpx.HTTPError, ValueError, AttributeError):
        return "it does not answer"
    return "; ".join(f"{name}: {reason}" for name, reason in failures.items())


def _answered(text: str) -> tuple[float, float]:
    """Returns (requests to the model, those with 5xx) since the gateway started."""
    counts = [
        (sample.value, sample.labels["status"])
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == _COUNTED and sample.labels["route"].startswith(_MODEL_ROUTES)
    ]
    failed = [count for count, status in counts if status.startswith("5")]
    return sum(count for count, _ in counts), sum(failed)
