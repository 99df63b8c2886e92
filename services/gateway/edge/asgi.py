"""The raw ASGI application: the hot paths here, everything else in the control application."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial

import orjson
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.gateway import metrics
from services.gateway.control.scopes import OPEN
from services.gateway.domain import report as reports
from services.gateway.domain.access import Grant
from services.gateway.domain.dialects import COUNT_TOKENS
from services.gateway.domain.errors import ApiError, invalid, no_scenario
from services.gateway.domain.exchange import HOT, INFERENCE, REPORT, Exchange
from services.gateway.domain.headers import HeaderLimits
from services.gateway.domain.jsontext import paired
from services.gateway.domain.memory import Charge, Memory, decoded_bytes
from services.gateway.domain.report import check_scenario
from services.gateway.edge.bodies import BodyReader
from services.gateway.edge.dialects import DIALECTS, TOKENIZE, DialectOutlet, Translation, chat_path
from services.gateway.edge.limits import Limits
from services.gateway.edge.stopping import Stopping
from services.gateway.exchange.client import AsgiOutlet, ClientGone, ClientWatch, refusal_of
from services.gateway.exchange.inference import Inference
from services.gateway.exchange.intake import Intake, RawHeaders, scenario_of, traceparent_of
from services.gateway.handlers import Handlers
from services.gateway.keys.repeats import Repeats

_JSON = (b"content-type", b"application/json")
_EXCHANGES = INFERENCE.keys() | DIALECTS.keys()
Handle = Callable[[Scope, Receive, AsgiOutlet, Charge], Awaitable[None]]


@dataclass(slots=True)
class Edge:
    """Dispatches by path, and counts routes and statuses."""

    intake: Intake
    inference: Inference
    repeats: Repeats
    handlers: Handlers
    bodies: BodyReader
    memory: Memory
    stopping: Stopping
    headers: HeaderLimits = field(default_factory=HeaderLimits)
    limits: Limits | None = None  # if no requests are counted
    translation: Translation = field(init=False)
    control: ASGIApp = field(init=False)

    def __post_init__(self) -> None:
        self.translation = Translation(self.handlers.reads)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.control(scope, receive, send)
            return
        path, charge = scope["path"], Charge(self.memory)
        dialect = DIALECTS.get(path)
        out = AsgiOutlet(send) if dialect is None else DialectOutlet(send, dialect)
        handle: Handle = self._control
        refusal = self.headers.refusal(scope["headers"], scope["raw_path"], scope["query_string"])
        hot = refusal is None and path in HOT and scope["method"] == "POST"
        if refusal is not None:
            handle = partial(_refuse, refusal)
        elif hot:
            handle = self._report if path == REPORT else self._infer
        started = time.perf_counter()
        try:
            await self._limited(scope, receive, out, handle, charge)
        finally:
            out.end()
            charge.end()
            # Routes are counted by their pattern: a path that a client made up is never a label.
            route = scope.get("route")
            name = path if path in HOT else route.path if isinstance(route, Route) else "other"
            # A stream that an error ended counts as a failure, although its head said 200.
            metrics.requests(name, 502 if out.broken else out.status or 499).inc()
            if hot:
                metrics.latency(path).observe(time.perf_counter() - started)

    async def _limited(
        self, scope: Scope, receive: Receive, out: AsgiOutlet, handle: Handle, charge: Charge
    ) -> None:
        # errors go to the client in the API's shape
        path = scope["path"]
        try:
            if self.limits is None or path in OPEN:
                await handle(scope, receive, out, charge)
            else:
                async with self._held(self.limits, scope, exchange=path in _EXCHANGES) as out.extra:
                    await handle(scope, receive, out, charge)
        except ClientGone:
            out.status = out.status or 499
        except asyncio.CancelledError:
            if not await self.stopping.tell(out):
                raise
        except Exception as error:
            if handle == self._control and out.status:
                raise  # FastAPI has answered and logged it
            await out.refuse(refusal_of(error, path))

    async def _control(
        self, scope: Scope, receive: Receive, out: AsgiOutlet, charge: Charge
    ) -> None:
        if scope["method"] in {"POST", "PUT", "PATCH", "DELETE"}:
            raw = await self.bodies.read(dict(scope["headers"]), receive, charge)
            charge.to(charge.size + decoded_bytes(raw))  # FastAPI keeps it decoded
            receive = _again(raw, receive)
        await self.control(scope, receive, out.send)

    def _held(
        self, limits: Limits, scope: Scope, *, exchange: bool
    ) -> AbstractAsyncContextManager[list[tuple[bytes, bytes]]]:
        headers = dict(scope["headers"])
        scenario = headers.get(b"x-reef-scenario", b"default").decode("latin-1")
        # names that a client made up are counted together
        known = self.handlers.table.head(scenario) is not None
        return limits.hold(
            self.intake.access.grant(headers), scenario if known else "", exchange=exchange
        )

    async def _infer(self, scope: Scope, receive: Receive, out: AsgiOutlet, charge: Charge) -> None:
        path, raw_headers = scope["path"], scope["headers"]
        headers = dict(raw_headers)
        grant = self.intake.access.grant(headers)
        raw = await self.bodies.read(headers, receive, charge)
        self.memory.check_decoding(raw)
        raw = paired(raw)
        if isinstance(out, DialectOutlet):
            exchange = await self._translated(path, raw, raw_headers, grant, out)
        else:
            exchange = await self.intake.exchange(path, raw, raw_headers, headers, grant)
        charge.to(len(raw) + len(exchange.upstream))
        exchange.charge = charge
        answerer = self.repeats if exchange.keyed else self.inference
        try:
            await answerer.answer(exchange, out, ClientWatch(receive))
        finally:
            out.broken = out.broken or exchange.broken

    async def _translated(
        self, path: str, raw: bytes, raw_headers: RawHeaders, grant: Grant, out: DialectOutlet
    ) -> Exchange:
        headers = dict(raw_headers)
        scenario = scenario_of(headers)
        grant.check("infer", scenario)  # before an earlier response of it is read
        raw = await self.translation.read(path, raw, scenario, out)
        exchange = await self.intake.exchange(chat_path(path), raw, raw_headers, headers, grant)
        exchange.dialect = DIALECTS[path].api
        if path == COUNT_TOKENS:
            exchange.path = TOKENIZE
        return exchange

    async def _report(
        self, scope: Scope, receive: Receive, out: AsgiOutlet, charge: Charge
    ) -> None:
        headers = dict(scope["headers"])
        grant = self.intake.access.grant(headers)
        raw = await self.bodies.read(headers, receive, charge)
        charge.to(charge.size + decoded_bytes(raw))
        scenario = scenario_of(headers)
        grant.check("report", scenario)
        report = reports.parse(paired(raw))
        if report.scenario is not None and report.scenario != scenario:
            named = check_scenario(report.scenario)
            if b"x-reef-scenario" in headers:
                words = (
                    f"The body names scenario {named!r}, the header x-reef-scenario {scenario!r}."
                )
                raise invalid("scenario", words)
            scenario = named
            grant.check("report", scenario)
        table = self.handlers.table
        if table.head(scenario) is None and scenario != "default" and scenario not in table.damaged:
            raise no_scenario(scenario, "x-reef-scenario")
        receipt = await self.handlers.on_report(report, scenario, traceparent_of(headers))
        metrics.REPORTS.inc()
        kept = {"agent_record_id": receipt, "scenario": scenario, "request_type": "report"}
        headers_out = [_JSON, (b"x-reef-agent-record-id", receipt.encode())]
        await out.reply(202, headers_out, orjson.dumps(kept))


async def _refuse(error: ApiError, *_request: object) -> None:
    raise error


def _again(raw: bytes, receive: Receive) -> Receive:
    # gives a body that was read already, then the messages after it
    left: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]

    async def next_message() -> Message:
        return left.pop() if left else await receive()

    return next_message
