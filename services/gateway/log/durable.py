"""The log as the gateway sees it: the broker if it answers, else this machine's disk."""

#     direct    event --> broker; if that is late, this and all later events are spooled
#     spooling  event --> spool; the spool --in order--> broker, when that answers
#     handover  the last events are being relayed: new events wait for that, then the mode is direct
#
# An acknowledged event is in the log before all later ones: no event goes directly while the spool
# has events.

import asyncio
import random
import time

import structlog

from services.gateway import metrics
from services.gateway.domain.log_event import LogEvent
from services.gateway.log.kafka import EventRefused, KafkaRecordLog
from services.gateway.log.spool import Spool
from services.gateway.ports import NotDurable

log = structlog.get_logger()

FIRST_DELAY_S = 0.1
MAX_DELAY_S = 2.0
PORTION_RECORDS = 1000
WATCH_EVERY_S = 0.1
ADOPT_EVERY_S = 30.0
HANDOVER_RECORDS = 200
HANDOVER_BYTES = 1024 * 1024


class DurableLog:
    """RecordLog on a broker and a spool. `run` and `watch` must run beside it."""

    def __init__(
        self, broker: KafkaRecordLog, spool: Spool, *, ready_bytes: int, ready_age_s: float
    ) -> None:
        self.broker = broker
        self.spool = spool
        self._ready_bytes = ready_bytes
        self._ready_age_s = ready_age_s
        self.direct = False
        self._since = time.time()
        self._away = asyncio.Event()
        self._away.set()
        self._back = asyncio.Event()
        self._handover: asyncio.Event | None = None
        self.relayed = 0

    async def append(self, event: LogEvent) -> None:
        while self._handover is not None:
            await self._handover.wait()
        if self.direct:
            try:
                await self.broker.append(event)
            except EventRefused:
                raise
            except NotDurable as error:
                self._leave(str(error))
            else:
                return
        await self.spool.append(event)

    def refusal(self) -> str | None:
        return None if self.direct else self.spool.refusal()

    async def failure(self) -> str | None:
        # A broker that is away is no failure before the spool is too large or too old.
        reason = self.spool.refusal() if not self.direct else None
        if reason is not None:
            return reason
        age = self.spool.age_s()
        if age > self._ready_age_s or self.spool.used_bytes > self._ready_bytes:
            return (
                f"{self.spool.records} events ({self.spool.used_bytes} bytes) wait on disk,"
                f" the oldest {age:.0f} s: {self.broker.away}"
            )
        try:
            return await self.broker.missing_topics()
        except NotDurable:
            return None

    def _leave(self, reason: str) -> None:
        if self.direct:
            self._begin_to_spool()
            self.broker.let_go(reason)
            log.warning("broker_away", reason=reason, spool=self.spool.directory)

    def _begin_to_spool(self) -> None:
        self.direct = False
        self._since = time.time()
        self._back.clear()
        self._away.set()

    async def watch(self) -> None:
        """Leave a broker whose addresses refuse connections; adopt the spools of dead gateways.

        Runs for ever.
        """
        looked_at = time.monotonic()
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            if self.direct and (reason := await self.broker.gone()) is not None:
                self._leave(reason)
            if self.direct and time.monotonic() - looked_at > ADOPT_EVERY_S:
                looked_at = time.monotonic()
                await self.adopt()

    async def adopt(self) -> None:
        """Take over the spools of dead gateways, and relay them before new events."""
        try:
            waiting = await self.spool.adopt()
        except OSError as error:
            log.warning("spool_not_adopted", reason=str(error))
            return
        if waiting and self.direct:
            # Not `_leave`: the broker is there, and events on their way to it arrive.
            self._begin_to_spool()

    async def run(self) -> None:
        """When the broker is away, wait for it, relay, switch back. Runs for ever."""
        delay = FIRST_DELAY_S
        while True:
            await self._away.wait()
            try:
                await self.broker.connect()
                await self._relay()
                delay = FIRST_DELAY_S
            except (NotDurable, OSError) as error:
                log.debug("relay_waits", reason=str(error), records=self.spool.records)
                await asyncio.sleep(delay * random.uniform(0.8, 1.2))
                delay = min(delay * 2, MAX_DELAY_S)

    async def _relay(self) -> None:
        before, proven = self.relayed, False
        try:
            while not self._return():
                if (
                    proven
                    and self.spool.records <= HANDOVER_RECORDS
                    and self.spool.backlog_bytes <= HANDOVER_BYTES
                ):
                    self._handover = self._handover or asyncio.Event()
                portion = await self.spool.read(PORTION_RECORDS)
                if portion is None:
                    await self.spool.flushed()
                    await asyncio.sleep(0.002)
                    continue
                await self.broker.append_all(portion.events)
                await self.spool.acknowledge(portion)
                self.relayed += len(portion.events)
                proven = True
        finally:
            if self._handover is not None:
                self._handover.set()
                self._handover = None
        log.info(
            "broker_back", relayed=self.relayed - before, away_s=round(time.time() - self._since, 1)
        )

    def _return(self) -> bool:
        # No await may lie between the check and the switch: an event could be spooled there.
        if not self.spool.idle or self.broker.waiting:
            return False
        self._away.clear()
        self._back.set()
        self.direct = True
        return True

    async def back(self, within_s: float) -> None:
        """Wait until all events are with the broker, at most `within_s` seconds."""
        try:
            async with asyncio.timeout(within_s):
                await self._back.wait()
        except TimeoutError:
            log.info("broker_not_reached", within_s=within_s, spooled=self.spool.records)

    def waiting_since(self) -> float | None:
        """The time of the oldest event that the broker lacks; None if it has all."""
        return None if self.spool.idle else self.spool.oldest_at

    def describe(self) -> dict[str, object]:
        """For `/status`."""
        return {
            "mode": "direct" if self.direct else "spooling",
            "broker_away": None if self.direct else self.broker.away,
            "directory": self.spool.directory,
            "records": self.spool.records,
            "bytes": self.spool.used_bytes,
            "oldest_s": round(self.spool.age_s(), 1),
            "relayed": self.relayed,
        }

    def show(self) -> None:
        """Connect the gauges to this log."""
        metrics.SPOOL_RECORDS.set_function(lambda: self.spool.records)
        metrics.SPOOL_BYTES.set_function(lambda: self.spool.used_bytes)
        metrics.SPOOL_AGE.set_function(self.spool.age_s)
