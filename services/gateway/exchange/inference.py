"""The path of an exchange: it is durable before the client's last byte.

engine answers --strip Reef's fields--> client
      |                                   ^ last bytes only after
      '--capture--> event --append--> durable

the client leaves         -> the engine's connection is cut, the record is `aborted`
the engine refuses        -> relayed in the API's shape, the record is `failed`
the engine breaks off     -> an error event, no [DONE], the record is `upstream_incomplete`
the log does not confirm  -> 503 (a stream: an error event, no [DONE])
the log has no room       -> 503 before the engine is asked
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

from reefcommon.events import Sampling
from services.gateway import metrics
from services.gateway.domain.answer import Captured, as_stream, encoded, recorded, take
from services.gateway.domain.assembly import Assembly
from services.gateway.domain.deltas import Malformed
from services.gateway.domain.errors import ApiError, no_room, relayed
from services.gateway.domain.exchange import Exchange
from services.gateway.domain.jsontext import dumps, loads
from services.gateway.domain.record import Ending
from services.gateway.domain.sampling import effective
from services.gateway.domain.sse import DONE
from services.gateway.domain.stream import Stream
from services.gateway.exchange.client import ClientGone, ClientWatch, NoWatch, Outlet
from services.gateway.exchange.intake import own_receipt
from services.gateway.exchange.progress import Progress
from services.gateway.exchange.recording import Recorder
from services.gateway.exchange.tracing import Spans
from services.gateway.ports import (
    EngineAnswer,
    Engines,
    UpstreamFailed,
    answer_too_large,
    invalid_answer,
)

LARGE_ANSWER_BYTES = 256 * 1024


@dataclass(slots=True)
class Inference:
    """Answers exchanges."""

    engines: Engines
    recorder: Recorder
    spans: Spans | None = None
    max_answer_bytes: int = 256 * 1024 * 1024
    defaults: dict[str, Any] = field(default_factory=Sampling().model_dump)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def answer(self, exchange: Exchange, out: Outlet, watch: ClientWatch | NoWatch) -> str:
        """Answer an exchange.

        Returns its outcome, or `unrecorded` if the log did not confirm a stream.

        Raises:
            ApiError: the refusal to send; no byte was sent yet.
        """
        if self.spans is None:
            return (await self._answer(exchange, out, watch)).outcome
        span, ending = self.spans.start(exchange), None
        try:
            ending = await self._answer(exchange, out, watch)
            return ending.outcome
        finally:
            self.spans.end(span, exchange, ending)

    async def _answer(
        self, exchange: Exchange, out: Outlet, watch: ClientWatch | NoWatch
    ) -> Ending:
        if exchange.capture and self.recorder.log.refusal() is not None:
            raise no_room()
        progress = Progress()
        metrics.IN_FLIGHT.inc()
        try:
            ending = await self._converse(exchange, progress, out, watch)
            ending = await self.recorder.keep(exchange, progress, ending)
            if ending.outcome != "aborted":
                await self._finish(exchange, progress, out)
            return ending
        except asyncio.CancelledError:
            if not progress.kept:  # a record under way is finished by its own task
                reason = "the gateway was stopped before the answer was complete"
                ending = self._ending(exchange, progress, "aborted", error=reason)
                self.recorder.keep_later(exchange, ending)
            raise
        finally:
            metrics.IN_FLIGHT.dec()
            if progress.answer is not None:
                await progress.answer.close(finished=progress.finished)

    async def _converse(
        self, exchange: Exchange, progress: Progress, out: Outlet, watch: ClientWatch | NoWatch
    ) -> Ending:
        progress.asked_at = time.time()
        try:
            async with watch:
                progress.answer = answer = await self.engines.open(exchange)
                progress.status = answer.status
                progress.headers = exchange.headers + answer.headers
                if answer.event_stream and answer.status == 200:
                    return await self._stream(exchange, progress, answer, out)
                return await self._unary(exchange, progress, answer)
        except ClientGone:
            await self._take_turn(progress)
            reason = "the client closed the connection"
            return self._ending(exchange, progress, "aborted", error=reason)
        except UpstreamFailed as error:
            return self._broken(exchange, progress, error)

    async def _unary(self, exchange: Exchange, progress: Progress, answer: EngineAnswer) -> Ending:
        raw = await answer.read()
        progress.finished = True
        progress.answered_at = time.time()
        try:
            body = loads(raw)
        except (ValueError, RecursionError):
            body = None
        if answer.status >= 400:
            return self._refused(exchange, progress, answer, raw, body)
        if not isinstance(body, dict):
            raise invalid_answer(f"answered {answer.status} without a JSON object")
        captured = take(body, exchange.asked)
        try:
            sent = dumps(body)
        except (ValueError, TypeError, RecursionError):
            sent = b"\\ud"
        response = encoded(body, sent)
        if response is None:
            raise invalid_answer("sent an answer that is nested without end")
        if exchange.asked.stream:
            progress.tail = as_stream(body, exchange.api, exchange.asked)
            progress.set_type(b"text/event-stream; charset=utf-8")
        else:
            progress.tail = sent
        if exchange.capture and (kept := recorded(body)) is not None:
            response = encoded(kept)
        return self._ending(exchange, progress, "ok", response=response, captured=captured)

    def _refused(
        self, exchange: Exchange, progress: Progress, answer: EngineAnswer, raw: bytes, body: object
    ) -> Ending:
        text = raw[:2000].decode("utf-8", errors="replace")
        # the client's receipt stays free for the attempt that succeeds
        if exchange.keyed and (answer.status == 429 or answer.status >= 500):
            own_receipt(exchange)
            progress.headers = exchange.headers + answer.headers
        progress.tail = dumps({"error": relayed(answer.status, body if body is not None else text)})
        progress.set_type(b"application/json")
        return self._ending(exchange, progress, "failed", error=text)

    async def _stream(
        self, exchange: Exchange, progress: Progress, answer: EngineAnswer, out: Outlet
    ) -> Ending:
        stream = Stream(exchange.api, exchange.asked)
        progress.assembly = assembly = stream.assembly
        if exchange.asked.stream:
            progress.streaming = True
            await out.start(200, progress.headers)
        async for chunk in answer.chunks():
            progress.streamed_bytes += len(chunk)
            if progress.streamed_bytes > self.max_answer_bytes:
                raise answer_too_large()
            try:
                found = stream.feed(chunk)
            except Malformed as error:
                raise invalid_answer(str(error)) from None
            if progress.first_token_at is None and assembly.chunks:
                progress.first_token_at = time.time()
            if found and progress.streaming:
                await out.write(found, more=True)
            if stream.terminated:
                break
        else:
            if (found := stream.end()) and progress.streaming:
                await out.write(found, more=True)
        progress.terminated = stream.terminated
        return self._streamed(exchange, progress, assembly)

    def _streamed(self, exchange: Exchange, progress: Progress, assembly: Assembly) -> Ending:
        progress.tail = DONE if progress.terminated else b""
        if assembly.error is not None:
            if not progress.streaming:
                raise invalid_answer(f"reported an error: {assembly.error}")
            return self._ending(exchange, progress, "failed", error=assembly.error)
        if not progress.terminated:
            words = "The serving node ended the stream without its terminator."
            raise UpstreamFailed(words, status=502, code="upstream_incomplete")
        ending = self._ending(exchange, progress, "ok")
        if not progress.streaming:  # the client did not ask for a stream
            progress.tail = ending.response or b"{}"
            progress.set_type(b"application/json")
        return ending

    def _broken(self, exchange: Exchange, progress: Progress, error: UpstreamFailed) -> Ending:
        again_s = 2 if error.status == 503 else None
        refusal = ApiError(error.status, str(error), code=error.code, retry_after_s=again_s)
        outcome = "failed" if progress.assembly is None else "upstream_incomplete"
        if progress.streaming:
            progress.tail = b"data: " + refusal.body() + b"\n\n"
            return self._ending(exchange, progress, outcome, error=str(error))
        progress.status = error.status
        if exchange.keyed:
            own_receipt(exchange)
        progress.headers = exchange.headers + refusal.headers()
        progress.tail = refusal.body()
        return self._ending(exchange, progress, outcome, error=str(error))

    async def _take_turn(self, progress: Progress) -> None:
        # Large answers whose clients leave together are assembled one a round of the loop.
        if progress.streamed_bytes > LARGE_ANSWER_BYTES:
            async with self._turn:
                await asyncio.sleep(0)

    def _ending(
        self,
        exchange: Exchange,
        progress: Progress,
        outcome: str,
        *,
        response: bytes | None = None,
        captured: Captured | None = None,
        error: str | None = None,
    ) -> Ending:
        now = time.time()
        if progress.assembly is not None:
            captured = progress.assembly.captured(estimate=outcome != "ok")
            whole = progress.assembly.answer()
            response = encoded(whole) if whole is not None else None
            if whole is not None and response is None and outcome == "ok":
                raise invalid_answer("sent an answer that is nested without end")
        first = progress.first_token_at
        sampling = None
        if exchange.capture and captured is not None:
            sampling = effective(captured.sampling, exchange.sampling, self.defaults)
        return Ending(
            outcome=outcome,
            status=progress.status or 499,
            at=now,
            duration_ms=round((now - exchange.started) * 1000, 3),
            response=response,
            captured=captured,
            error=error,
            stream=exchange.asked.stream and (progress.assembly is not None or outcome == "ok"),
            first_token_ms=round((first - exchange.started) * 1000, 3) if first else None,
            sampling=sampling,
        )

    async def _finish(self, exchange: Exchange, progress: Progress, out: Outlet) -> None:
        if not progress.streaming:
            length = (b"content-length", b"%d" % len(progress.tail))
            await out.start(progress.status, [*progress.headers, length])
        await out.write(progress.tail, more=False)
        if progress.first_token_at is not None:
            metrics.FIRST_TOKEN.observe(progress.first_token_at - exchange.started)
        elif progress.answered_at:
            asked_s = progress.answered_at - progress.asked_at
            metrics.ADDED.observe(time.time() - exchange.started - asked_s)
        # bytes after the terminator are dropped: the connection can be used again
        progress.finished = progress.finished or progress.terminated
