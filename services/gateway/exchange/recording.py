"""Makes the record of an exchange durable before the client gets the end of its answer."""

import asyncio
import time
from dataclasses import dataclass, field

import structlog

from reefcommon import topics
from services.gateway import metrics
from services.gateway.domain.errors import not_durable
from services.gateway.domain.exchange import Exchange
from services.gateway.domain.log_event import LogEvent
from services.gateway.domain.recent import Recent
from services.gateway.domain.record import INLINE_EVENT_BYTES, Ending, body_of, event_of
from services.gateway.exchange.progress import Progress
from services.gateway.ports import BodyStore, NotDurable, RecordLog

log = structlog.get_logger()


@dataclass(slots=True)
class Recorder:
    """Writes records. `leftovers` are the records of exchanges that a shutdown cut off."""

    log: RecordLog
    bodies: BodyStore
    recent: Recent
    leftovers: set[asyncio.Task[None]] = field(default_factory=set)

    async def keep(self, exchange: Exchange, progress: Progress, ending: Ending) -> Ending:
        """Make the record durable. If that fails, end a stream by an error, else raise ApiError."""
        if not exchange.capture:
            return ending
        progress.kept = True
        started = time.perf_counter()
        try:
            # a gateway that stood still past its lease must not write a second record
            if exchange.still_mine is not None and not await exchange.still_mine():
                raise NotDurable("its key was taken over while this gateway stood still")
            await self._append(exchange, ending)
        except (NotDurable, OSError) as error:
            _not_kept(exchange, error)
            refusal = not_durable()
            if not progress.streaming:
                raise refusal from None
            progress.tail = b"data: " + refusal.body() + b"\n\n"
            return ending._replace(outcome="unrecorded")
        metrics.ACK.observe(time.perf_counter() - started)
        metrics.records(ending.outcome).inc()
        self.recent.add(exchange.record_id, exchange.scenario, "inference")
        return ending

    async def _append(self, exchange: Exchange, ending: Ending) -> None:
        large = len(exchange.raw) + len(ending.response or b"") > INLINE_EVENT_BYTES
        event = b"" if large else event_of(exchange, ending)
        if large or len(event) > INLINE_EVENT_BYTES:
            claim = await self.bodies.keep(body_of(exchange, ending))
            event = event_of(exchange, ending, claim)
        at, topic = ending.at, topics.INFERENCES.name
        await self.log.append(
            LogEvent(topic, exchange.shard, exchange.record_id, event, at, exchange.traceparent)
        )

    def keep_later(self, exchange: Exchange, ending: Ending) -> None:
        if not exchange.capture:
            return
        task = asyncio.get_running_loop().create_task(self._keep_leftover(exchange, ending))
        self.leftovers.add(task)
        task.add_done_callback(self.leftovers.discard)

    async def _keep_leftover(self, exchange: Exchange, ending: Ending) -> None:
        try:
            await self._append(exchange, ending)
            metrics.records(ending.outcome).inc()
        except (NotDurable, OSError) as error:
            _not_kept(exchange, error)


def _not_kept(exchange: Exchange, error: Exception) -> None:
    metrics.UNRECORDED.inc()
    log.error("record_not_durable", record_id=exchange.record_id, reason=str(error))
