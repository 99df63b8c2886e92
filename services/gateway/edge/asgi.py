"""The raw ASGI application: the hot paths here, everything else in the control application."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial

import orjson
import structlog
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from reefcommon.errors import Unavailable
from services.gateway import metrics
from services.gateway.control.scopes import OPEN
from services.gateway.domain import report as reports
from services.gateway.domain.access import Grant
from services.gateway.domain.errors import ApiError, invalid
from services.gateway.domain.exchange import Api
from services.gateway.domain.head import HeadLimits
from services.gateway.domain.memory import COPIES, Charge, Memory, decoded_bytes
from services.gateway.edge.limits import Limits
from services.gateway.edge.stopping import Stopping
from services.gateway.exchange.client import AsgiOutlet, ClientGone, ClientWatch
from services.gateway.exchange.inference import Inference
from services.gateway.exchange.intake import Intake, scenario_of, traceparent_of
from services.gateway.handlers import Handlers
from services.gateway.keys.repeats import Repeats

log = structlog.get_logger()

INFERENCE: Mapping[str, Api] = {
    "/v1/chat/completions": "chat.completions",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
}
REPORT = "/reef/report"
HOT = frozenset({*INFERENCE, REPORT})
BODY_SILENCES = 10
"""How many of the longest silences a whole body may take."""
_JSON = (b"content-type", b"application/json")


@dataclass(slots=True)
class Edge:
    """Dispatches by path. Routes and statuses are counted here."""

    intake: Intake
    inference: Inference
    repeats: Repeats
    handlers: Handlers
    max_body_bytes: int
    memory: Memory
    stopping: Stopping
    head: HeadLimits = field(default_factory=HeadLimits)
    limits: Limits | None = None
    """None where nobody's requests are counted."""
    body_timeout_s: float = 60.0
    control: ASGIApp = field(init=False)

    @property
    def held_bytes(self) -> int:
        """Memory that requests hold."""
        return self.memory.held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        path = scope.get("path", "")
        if scope["type"] != "http":
            await self.control(scope, receive, send)
        elif (
            error := self.head.refusal(scope["headers"], scope["raw_path"], scope["query_string"])
        ) is not None:
            await self._guarded(
                scope, receive, send, path if path in HOT else "other", partial(_refused, error)
            )
        elif path in INFERENCE:
            await self._guarded(scope, receive, send, path, self._infer)
        elif path == REPORT:
            await self._guarded(scope, receive, send, path, self._report)
        else:
            await self._counted(scope, receive, send)

    async def _counted(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The control application, its routes counted by their pattern: a path of a client's making never becomes a label."""
        out = AsgiOutlet(send)

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                await out.start(message["status"], message["headers"])
            else:
                await send(message)

        try:
            if self.limits is not None and scope["path"] not in OPEN:
                async with self._held(self.limits, scope, exchange=False) as out.told:
                    await self._control(scope, receive, noting)
            else:
                await self._control(scope, receive, noting)
        except ApiError as error:
            await out.refuse(error)
        except ClientGone:
            pass
        except asyncio.CancelledError:
            if not await self.stopping.tell(out):
                raise
        finally:
            route = scope.get("route")
            metrics.requests(
                route.path if isinstance(route, Route) else "other", out.status or 499
            ).inc()

    async def _control(self, scope: Scope, receive: Receive, send: Send) -> None:
        charge = Charge(self.memory)
        try:
            if scope["method"] in {"POST", "PUT", "PATCH", "DELETE"}:
                raw = await self._body(scope, dict(scope["headers"]), receive, charge)
                charge.to(
                    charge.size + decoded_bytes(raw)
                )  # FastAPI keeps it decoded until the answer
                receive = _again(raw, receive)
            await self.control(scope, receive, send)
        finally:
            charge.end()

    def _held(
        self, limits: Limits, scope: Scope, *, exchange: bool
    ) -> AbstractAsyncContextManager[list[tuple[bytes, bytes]]]:
        headers = dict(scope["headers"])
        scenario = headers.get(b"x-reef-scenario", b"default").decode("latin-1")
        known = (
            self.handlers.table.head(scenario) is not None
        )  # else names of a client's making would each be counted
        return limits.hold(self.intake.grant(headers), scenario if known else "", exchange=exchange)

    async def _guarded(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        path: str,
        handle: Callable[[Scope, Receive, AsgiOutlet], Awaitable[None]],
    ) -> None:
        started = time.perf_counter()
        out = AsgiOutlet(send)
        try:
            if self.limits is None:
                await handle(scope, receive, out)
            else:
                async with self._held(self.limits, scope, exchange=path in INFERENCE) as out.told:
                    await handle(scope, receive, out)
        except ApiError as error:
            await out.refuse(error)
        except ClientGone:
            out.status = out.status or 499
        except asyncio.CancelledError:
            if not await self.stopping.tell(out):
                raise
        except Unavailable as error:
            log.warning("outside_system_unavailable", route=path, reason=str(error))
            await out.refuse(
                ApiError(
                    503,
                    "A part of Reef that this needs does not answer; try again.",
                    code="unavailable",
                    retry_after_s=2,
                )
            )
        except Exception:  # a mistake of ours: without this the client would get uvicorn's words, and the metrics nothing
            log.exception("request_failed", route=path)
            await out.refuse(
                ApiError(
                    500,
                    "Reef failed on this request; the operator finds the reason in the log.",
                    code="internal_error",
                )
            )
        finally:
            metrics.requests(path, out.status or 499).inc()
            metrics.latency(path).observe(time.perf_counter() - started)

    async def _infer(self, scope: Scope, receive: Receive, out: AsgiOutlet) -> None:
        raw_headers = scope["headers"]
        headers = dict(raw_headers)
        grant = self.intake.grant(headers)
        charge = Charge(self.memory)
        try:
            raw = await self._body(scope, headers, receive, charge)
            self.memory.check_decoding(raw)
            x = await self.intake.exchange(
                INFERENCE[scope["path"]], scope["path"], raw, raw_headers, headers, grant
            )
            charge.to(len(raw) + len(x.upstream))
            x.charge = charge
            if x.keyed:
                await self.repeats.answer(x, out, ClientWatch(receive))
            else:
                await self.inference.answer(x, out, ClientWatch(receive))
        finally:
            charge.end()

    async def _report(self, scope: Scope, receive: Receive, out: AsgiOutlet) -> None:
        headers = dict(scope["headers"])
        grant = self.intake.grant(headers)
        charge = Charge(self.memory)
        try:
            raw = await self._body(scope, headers, receive, charge)
            charge.to(charge.size + decoded_bytes(raw))
            report_id, scenario = await self._accept(raw, headers, grant)
        finally:
            charge.end()
        metrics.REPORTS.inc()
        body = orjson.dumps(
            {"agent_record_id": report_id, "scenario": scenario, "request_type": "report"}
        )
        await out.start(
            202,
            [
                _JSON,
                (b"content-length", b"%d" % len(body)),
                (b"x-reef-agent-record-id", report_id.encode()),
            ],
        )
        await out.write(body, more=False)

    async def _accept(
        self, raw: bytes, headers: dict[bytes, bytes], grant: Grant
    ) -> tuple[str, str]:
        scenario = scenario_of(headers)
        grant.check("report", scenario)
        report = reports.parse(raw)
        if report.scenario is not None and report.scenario != scenario:
            if b"x-reef-scenario" in headers:
                raise invalid(
                    "scenario",
                    f"The body names scenario {report.scenario!r}, and the header x-reef-scenario {scenario!r}.",
                )
            scenario = report.scenario
            grant.check("report", scenario)
        table = self.handlers.table
        if table.head(scenario) is None and scenario != "default" and scenario not in table.damaged:
            raise ApiError(
                404,
                f"There is no scenario {scenario!r}.",
                code="scenario_not_found",
                param="x-reef-scenario",
            )
        return await self.handlers.on_report(report, scenario, traceparent_of(headers)), scenario

    async def _body(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, charge: Charge
    ) -> bytes:
        """The whole request body, charged as it comes, twice: it will be copied. Raises ApiError: 405, 408, 413, 503."""
        if scope["method"] != "POST" and scope["path"] in HOT:
            raise ApiError(405, f"{scope['path']} takes POST.", code="method_not_allowed")
        length = headers.get(b"content-length", b"0")
        declared = int(length) if length.isdigit() else 0
        if declared > self.max_body_bytes:
            raise self._too_large()
        self.memory.check(COPIES * declared)  # not charged: what is only announced takes no memory
        parts: list[bytes] = []
        size, ends = 0, time.monotonic() + BODY_SILENCES * self.body_timeout_s
        while True:
            message = await (self._piece(receive, ends) if parts else receive())
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > self.max_body_bytes:
                raise self._too_large()
            charge.to(COPIES * size)
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    async def _piece(self, receive: Receive, ends: float) -> Message:
        """What comes of a body after its first part: it has to go on coming, and to come to its end."""
        left = ends - time.monotonic()
        try:
            async with asyncio.timeout(min(self.body_timeout_s, left)):
                return await receive()
        except TimeoutError:
            whole = BODY_SILENCES * self.body_timeout_s
            words = (
                f"nothing of it came for {self.body_timeout_s:g} s"
                if left > self.body_timeout_s
                else f"it was not there after {whole:g} s"
            )
            raise ApiError(
                408, f"The request's body took too long: {words}.", code="body_timeout"
            ) from None

    def _too_large(self) -> ApiError:
        return ApiError(
            413,
            f"The request body has more than {self.max_body_bytes} bytes.",
            code="body_too_large",
        )


async def _refused(error: ApiError, _scope: Scope, _receive: Receive, _out: AsgiOutlet) -> None:
    raise error


def _again(raw: bytes, receive: Receive) -> Receive:
    """A body that was read already, once more; then what comes after it."""
    left: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]

    async def next_message() -> Message:
        return left.pop() if left else await receive()

    return next_message
