"""The hot path: one exchange from the engine's first byte to the client's last, durable in between.

engine answers --strip what Reef asked for--> client
      |                                         ^ last bytes only after
      '--capture--> event --append--> durable --'

the client leaves         -> the engine's connection is cut, the record is `aborted`
the engine refuses        -> its answer is relayed, the record is `failed`
the engine breaks off     -> an error event, no [DONE], the record is `upstream_incomplete`
the log does not confirm  -> 503 (a stream: an error event, no [DONE])
the log has no room       -> 503 before the engine is asked
"""

import asyncio
import time
from dataclasses import dataclass, field, replace

import orjson
import structlog

from reefcommon import topics
from services.gateway import metrics
from services.gateway.domain.answer import Captured, encoded, recorded, take
from services.gateway.domain.assembly import Assembly, Malformed
from services.gateway.domain.errors import ApiError, no_room, not_durable
from services.gateway.domain.exchange import Exchange
from services.gateway.domain.recent import Recent
from services.gateway.domain.record import INLINE_EVENT_BYTES, Ending, body_of, event_of
from services.gateway.domain.sse import DONE
from services.gateway.domain.stream import Stream
from services.gateway.exchange.client import ClientGone, ClientWatch, NoWatch, Outlet
from services.gateway.exchange.intake import own_receipt
from services.gateway.exchange.progress import Progress
from services.gateway.exchange.tracing import Spans
from services.gateway.ports import (
    BodyStore,
    EngineAnswer,
    Engines,
    NotDurable,
    RecordLog,
    UpstreamFailed,
    answer_too_large,
    invalid_answer,
)

log = structlog.get_logger()

LARGE_ANSWER_BYTES = 256 * 1024


@dataclass(slots=True)
class Inference:
    """Answers exchanges."""

    engines: Engines
    log: RecordLog
    bodies: BodyStore
    recent: Recent
    spans: Spans | None = None
    max_answer_bytes: int = 256 * 1024 * 1024
    leftovers: set[asyncio.Task[None]] = field(default_factory=set)
    """Records of exchanges that were cut off by a shutdown, on their way to the log."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answer(self, x: Exchange, out: Outlet, watch: ClientWatch | NoWatch) -> str:
        """Answer one exchange. Returns how it ended (`ok`, `aborted`, `failed`, `upstream_incomplete`; `unrecorded`: a stream whose record
        the log did not confirm).

        Raises:
            ApiError: nothing was sent yet, and this is what to send.
        """
        if self.spans is None:
            return (await self._answer(x, out, watch)).outcome
        span, ending = self.spans.start(x), None
        try:
            ending = await self._answer(x, out, watch)
            return ending.outcome
        finally:
            self.spans.end(span, x, ending)

    async def _answer(self, x: Exchange, out: Outlet, watch: ClientWatch | NoWatch) -> Ending:
        if x.capture and self.log.refusal() is not None:
            raise no_room()
        p = Progress()
        metrics.IN_FLIGHT.inc()
        try:
            ending = await self._converse(x, p, out, watch)
            ending = await self._keep(x, p, ending)
            if ending.outcome != "aborted":
                await self._finish(x, p, out)
            return ending
        except asyncio.CancelledError:
            if not p.kept:
                reason = "the gateway was stopped before the answer was complete"
                self._keep_later(x, self._ending(x, p, "aborted", error=reason))
            raise
        finally:
            metrics.IN_FLIGHT.dec()
            if p.answer is not None:
                await p.answer.close(finished=p.finished)

    async def _converse(
        self, x: Exchange, p: Progress, out: Outlet, watch: ClientWatch | NoWatch
    ) -> Ending:
        p.asked_at = time.time()
        try:
            async with watch:
                p.answer = answer = await self.engines.open(x)
                p.status = answer.status
                p.headers = x.headers + answer.headers
                if answer.event_stream and answer.status == 200:
                    return await self._relay(x, p, answer, out)
                return await self._unary(x, p, answer)
        except ClientGone:
            await self._take_turn(p)
            return self._ending(x, p, "aborted", error="the client closed the connection")
        except UpstreamFailed as error:
            return self._broken(x, p, error)

    async def _unary(self, x: Exchange, p: Progress, answer: EngineAnswer) -> Ending:
        raw = await answer.read()
        p.finished = True
        p.answered_at = time.time()
        if answer.status >= 400:
            p.tail = raw
            if x.keyed and (answer.status == 429 or answer.status >= 500):
                own_receipt(x)
                p.headers = x.headers + answer.headers
            return self._ending(x, p, "failed", error=raw[:2000].decode("utf-8", errors="replace"))
        try:
            body = orjson.loads(raw)
        except orjson.JSONDecodeError:
            body = None
        if not isinstance(body, dict):
            raise invalid_answer(f"answered {answer.status} without a JSON object")
        captured = take(body, x.asked)
        whole = encoded(body)
        if whole is None:
            raise invalid_answer("sent an answer that is nested without end")
        p.tail = whole
        kept = recorded(body) if x.capture else None
        return self._ending(
            x, p, "ok", response=whole if kept is None else encoded(kept), captured=captured
        )

    async def _relay(self, x: Exchange, p: Progress, answer: EngineAnswer, out: Outlet) -> Ending:
        stream = Stream(x.api, x.asked)
        p.assembly = assembly = stream.assembly
        await out.start(200, p.headers)
        async for chunk in answer.chunks():
            p.streamed_bytes += len(chunk)
            if p.streamed_bytes > self.max_answer_bytes:
                raise answer_too_large()
            try:
                found = stream.feed(chunk)
            except Malformed as error:
                raise invalid_answer(str(error)) from None
            if p.first_token_at is None and assembly.chunks:
                p.first_token_at = time.time()
            if found:
                await out.write(found, more=True)
            if stream.terminated:
                p.terminated = True
                p.tail = DONE
                break
        return self._streamed(x, p, assembly)

    def _streamed(self, x: Exchange, p: Progress, assembly: Assembly) -> Ending:
        if assembly.error is not None:
            return self._ending(x, p, "failed", error=assembly.error)
        if not p.terminated:
            raise UpstreamFailed(
                "The serving node ended the stream without its terminator.",
                status=502,
                code="upstream_incomplete",
            )
        if x.capture:
            p.tail = assembly.notice(x.record_id) + DONE
        return self._ending(x, p, "ok")

    def _broken(self, x: Exchange, p: Progress, error: UpstreamFailed) -> Ending:
        refusal = ApiError(
            error.status,
            str(error),
            code=error.code,
            retry_after_s=2 if error.status == 503 else None,
        )
        if p.assembly is not None:
            p.tail = b"data: " + refusal.body() + b"\n\n"
            return self._ending(x, p, "upstream_incomplete", error=str(error))
        p.status = error.status
        if x.keyed:
            own_receipt(x)
        p.headers = x.headers + refusal.headers()
        p.tail = refusal.body()
        return self._ending(x, p, "failed", error=str(error))

    async def _take_turn(self, p: Progress) -> None:
        """Large answers whose clients leave together are put together one a round of the loop: all in one would hold up everybody else."""
        if p.streamed_bytes > LARGE_ANSWER_BYTES:
            async with self._turn:
                await asyncio.sleep(0)

    def _ending(
        self,
        x: Exchange,
        p: Progress,
        outcome: str,
        *,
        response: bytes | None = None,
        captured: Captured | None = None,
        error: str | None = None,
    ) -> Ending:
        now = time.time()
        if p.assembly is not None:
            captured = p.assembly.captured(estimate=outcome != "ok")
            whole = p.assembly.answer()
            response = encoded(whole) if whole is not None else None
            if whole is not None and response is None and outcome == "ok":
                raise invalid_answer("sent an answer that is nested without end")
        return Ending(
            outcome=outcome,
            status=p.status or 499,
            at=now,
            duration_ms=round((now - x.started) * 1000, 3),
            response=response,
            captured=captured,
            error=error,
            stream=p.assembly is not None,
            first_token_ms=round((p.first_token_at - x.started) * 1000, 3)
            if p.first_token_at
            else None,
        )

    async def _keep(self, x: Exchange, p: Progress, ending: Ending) -> Ending:
        """Make the record durable; where that fails, tell the client instead of answering."""
        if not x.capture:
            return ending
        p.kept = True
        started = time.perf_counter()
        try:
            if x.still_mine is not None and not await x.still_mine():
                raise NotDurable("its key was taken over while this gateway stood still")
            await self._append(x, ending)
        except (NotDurable, OSError) as error:
            metrics.UNRECORDED.inc()
            log.error("record_not_durable", record_id=x.record_id, reason=str(error))
            refusal = not_durable()
            if p.assembly is None:
                raise refusal from None
            p.tail = b"data: " + refusal.body() + b"\n\n"
            return replace(ending, outcome="unrecorded")
        metrics.ACK.observe(time.perf_counter() - started)
        metrics.records(ending.outcome).inc()
        self.recent.add(x.record_id, x.scenario, "inference")
        return ending

    async def _append(self, x: Exchange, ending: Ending) -> None:
        large = len(x.raw) + len(ending.response or b"") > INLINE_EVENT_BYTES
        event = b"" if large else event_of(x, ending)
        if large or len(event) > INLINE_EVENT_BYTES:
            event = event_of(x, ending, await self.bodies.keep(body_of(x, ending)))
        await self.log.append(topics.INFERENCES.name, event, x.shard, x.traceparent)

    async def _finish(self, x: Exchange, p: Progress, out: Outlet) -> None:
        if p.assembly is not None:
            await out.write(p.tail, more=False)
            if p.first_token_at is not None:
                metrics.FIRST_TOKEN.observe(p.first_token_at - x.started)
        else:
            await out.start(p.status, [*p.headers, (b"content-length", b"%d" % len(p.tail))])
            await out.write(p.tail, more=False)
            if p.answered_at:
                metrics.ADDED.observe(time.time() - x.started - (p.answered_at - p.asked_at))
        p.finished = p.finished or p.terminated

    def _keep_later(self, x: Exchange, ending: Ending) -> None:
        if not x.capture:
            return
        task = asyncio.get_running_loop().create_task(self._keep_leftover(x, ending))
        self.leftovers.add(task)
        task.add_done_callback(self.leftovers.discard)

    async def _keep_leftover(self, x: Exchange, ending: Ending) -> None:
        try:
            await self._append(x, ending)
            metrics.records(ending.outcome).inc()
        except (NotDurable, OSError) as error:
            metrics.UNRECORDED.inc()
            log.error("record_not_durable", record_id=x.record_id, reason=str(error))
