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
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any

from reefcommon.events import Sampling
from services.gateway import metrics
from services.gateway.domain.answer import Captured, as_stream, encoded, recorded, take
from services.gateway.domain.dialects.legible import check_answer
from services.gateway.domain.errors import (
    UpstreamFailed,
    answer_too_large,
    invalid_answer,
    no_room,
    relayed,
)
from services.gateway.domain.exchange import Exchange
from services.gateway.domain.jsontext import dumps, loads
from services.gateway.domain.record import Ending
from services.gateway.domain.sampling import effective
from services.gateway.domain.sse import DONE
from services.gateway.domain.stream import Stream
from services.gateway.exchange.client import ClientGone, Outlet
from services.gateway.exchange.progress import Progress
from services.gateway.exchange.recording import Recorder
from services.gateway.exchange.tracing import Spans
from services.gateway.ports import EngineAnswer, Engines

Watch = AbstractAsyncContextManager[Any]
"""Raises ClientGone in its block when the client leaves; `nullcontext` if the work goes on."""
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

    async def answer(self, exchange: Exchange, out: Outlet, watch: Watch) -> str:
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

    async def _answer(self, exchange: Exchange, out: Outlet, watch: Watch) -> Ending:
        if exchange.capture and self.recorder.log.refusal() is not None:
            raise no_room()
        progress = Progress(exchange, out)
        metrics.IN_FLIGHT.inc()
        try:
            ending = await self._converse(progress, watch)
            ending = await self.recorder.keep(exchange, progress, ending)
            if ending.outcome != "aborted":
                exchange.broken = progress.streaming and ending.outcome != "ok"
                await _finish(progress)
            return ending
        except asyncio.CancelledError:
            if not progress.kept:  # a record under way is finished by its own task
                reason = "the gateway was stopped before the answer was complete"
                self.recorder.keep_later(exchange, self._ending(progress, "aborted", error=reason))
            raise
        finally:
            metrics.IN_FLIGHT.dec()
            if progress.answer is not None:
                await progress.answer.close(finished=progress.finished)

    async def _converse(self, progress: Progress, watch: Watch) -> Ending:
        progress.asked_at = time.time()
        try:
            async with watch:
                progress.answer = answer = await self.engines.open(progress.exchange)
                progress.status = answer.status
                progress.headers = progress.exchange.headers + answer.headers
                if answer.event_stream and answer.status == 200:
                    return await self._stream(progress, answer)
                return await self._unary(progress, answer)
        except ClientGone:
            # Large answers whose clients leave together are assembled one a round of the loop.
            if progress.streamed_bytes > LARGE_ANSWER_BYTES:
                async with self._turn:
                    await asyncio.sleep(0)
            return self._ending(progress, "aborted", error="the client closed the connection")
        except UpstreamFailed as error:
            outcome = "failed" if progress.assembly is None else "upstream_incomplete"
            if progress.streaming:
                progress.tail = b"data: " + error.body() + b"\n\n"
            else:
                progress.status, progress.tail = error.status, error.body()
                progress.free_receipt(error.headers())
            return self._ending(progress, outcome, error=str(error))

    async def _unary(self, progress: Progress, answer: EngineAnswer) -> Ending:
        exchange, raw = progress.exchange, await answer.read()
        progress.finished = True
        progress.answered_at = time.time()
        try:
            body = loads(raw)
        except (ValueError, RecursionError):
            body = None
        if answer.status >= 400:
            text = raw[:2000].decode("utf-8", errors="replace")
            if answer.status == 429 or answer.status >= 500:
                progress.free_receipt(answer.headers)
            refusal = relayed(answer.status, body if body is not None else text)
            progress.answer_with(dumps({"error": refusal}), b"application/json")
            return self._ending(progress, "failed", error=text)
        if not isinstance(body, dict):
            raise invalid_answer(f"answered {answer.status} without a JSON object")
        if exchange.dialect and exchange.api == "chat.completions":
            check_answer(body)
        captured = take(body, exchange.asked)
        try:
            sent = dumps(body)
        except (ValueError, TypeError, RecursionError):
            sent = b"\\ud"
        response = encoded(body, sent)
        if response is None:
            raise invalid_answer("sent an answer that is nested without end")
        if exchange.asked.stream:
            events = as_stream(body, exchange.api, exchange.asked)
            progress.answer_with(events, b"text/event-stream; charset=utf-8")
        else:
            progress.tail = sent
        if exchange.capture and (kept := recorded(body)) is not None:
            response = encoded(kept)
        return self._ending(progress, "ok", response=response, captured=captured)

    async def _stream(self, progress: Progress, answer: EngineAnswer) -> Ending:
        exchange, out = progress.exchange, progress.out
        stream = Stream(exchange.api, exchange.asked, translated=exchange.dialect != "")
        progress.assembly = assembly = stream.assembly
        if exchange.asked.stream:
            progress.streaming = True
            await out.start(200, progress.headers)
        async for chunk in answer.chunks():
            progress.streamed_bytes += len(chunk)
            if progress.streamed_bytes > self.max_answer_bytes:
                raise answer_too_large()
            found = stream.feed(chunk)
            if progress.first_token_at is None and assembly.chunks:
                progress.first_token_at = time.time()
            if found and progress.streaming:
                await out.write(found, more=True)
            if stream.terminated:
                break
        else:
            if (found := stream.end()) and progress.streaming:
                await out.write(found, more=True)
            # some providers send no terminator
            stream.terminated |= exchange.provider != "" and assembly.complete
        progress.terminated = stream.terminated
        progress.tail = DONE if stream.terminated else b""
        if assembly.error is not None:
            if not progress.streaming:
                raise invalid_answer(f"reported an error: {assembly.error}")
            return self._ending(progress, "failed", error=assembly.error)
        if not stream.terminated:
            words = "The serving node ended the stream without its terminator."
            raise UpstreamFailed(502, words, code="upstream_incomplete")
        ending = self._ending(progress, "ok")
        if not progress.streaming:  # the client did not ask for a stream
            progress.answer_with(ending.response or b"{}", b"application/json")
        return ending

    def _ending(
        self,
        progress: Progress,
        outcome: str,
        *,
        response: bytes | None = None,
        captured: Captured | None = None,
        error: str | None = None,
    ) -> Ending:
        exchange, now, assembly = progress.exchange, time.time(), progress.assembly
        if assembly is not None:
            captured = assembly.captured(estimate=outcome != "ok")
            whole = assembly.answer()
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
            stream=exchange.asked.stream and (assembly is not None or outcome == "ok"),
            first_token_ms=round((first - exchange.started) * 1000, 3) if first else None,
            sampling=sampling,
        )


async def _finish(progress: Progress) -> None:
    if not progress.streaming:
        length = (b"content-length", b"%d" % len(progress.tail))
        await progress.out.start(progress.status, [*progress.headers, length])
    await progress.out.write(progress.tail, more=False)
    if progress.first_token_at is not None:
        metrics.FIRST_TOKEN.observe(progress.first_token_at - progress.exchange.started)
    elif progress.answered_at:
        asked_s = progress.answered_at - progress.asked_at
        metrics.ADDED.observe(time.time() - progress.exchange.started - asked_s)
    # bytes after the terminator are dropped: the connection can be used again
    progress.finished = progress.finished or progress.terminated
