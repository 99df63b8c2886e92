"""The read API of the experience service, for the gateway and the command line."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field
from pydantic_core import from_json, to_json

from reefcommon.errors import Poison, Unavailable
from reefcommon.events import BodyRef
from services.experience.clickhouse import ClickHouseReads
from services.experience.kafka import KafkaHandled
from services.experience.key_lookups import KeyLookups
from services.experience.ports import Audit, BodyStore, UnknownCursor

Next = Callable[[Request], Awaitable[Response]]
Limit = Annotated[int, Query(ge=1, le=1000)]
Wait = Annotated[float, Query(ge=0, le=10)]
Cursor = Annotated[str | None, Query(max_length=256)]


def read_routes(reads: ClickHouseReads, bodies: BodyStore) -> APIRouter:
    """Build the read API. A single record comes with its claimed body."""
    router = APIRouter(default_response_class=Response)

    @router.get("/records/{record_id}")
    async def record(record_id: str) -> Response:
        found = await reads.record(record_id)
        if found is None:
            return _error(404, f"no record {record_id}", "record_not_found")
        event = found["record"]
        if event.get("body_ref") is not None and event["request"] is None:
            event.update(await _body(bodies, event["body_ref"]))
        return _json(found)

    @router.get("/scenarios/{scenario}/summary")
    async def summary(scenario: str) -> Response:
        return _json(await reads.summary(scenario))

    @router.get("/scenarios/{scenario}/{name}")
    async def page(
        scenario: str,
        name: str,
        limit: Limit = 50,
        cursor: Cursor = None,
        session: str | None = None,
        outcome: str | None = None,
        trainable: bool | None = None,
        kind: str | None = None,
        unit: str | None = None,
    ) -> Response:
        filters: dict[str, Any] = {"session": session, "outcome": outcome, "trainable": trainable}
        filters |= {"kind": kind, "unit": unit}
        return _json(await reads.page(name, scenario, limit=limit, cursor=cursor, **filters))

    return router


class Range(BaseModel):
    """The keys that a range lies between."""

    after: tuple[str, ...] | None = None
    until: tuple[str, ...] | None = None


class Picked(BaseModel):
    """Keys of single rows."""

    keys: list[tuple[str, ...]] = Field(max_length=1000)


def key_routes(reads: ClickHouseReads, handled: KafkaHandled, bodies: BodyStore) -> APIRouter:
    """Build the route that tells a gateway whether a client's own receipt was used.

    A 404 says whether the log was read far enough.
    """
    lookups = KeyLookups(reads.keys)
    router = APIRouter(default_response_class=Response)

    @router.get("/keys/{key}")
    async def key(key: str, until: float, wait_s: Wait = 0.0) -> Response:
        complete = handled.has_reached(until)
        found = await lookups.find(key)
        if found is None and not complete:
            complete = await handled.reaches(until, within_s=wait_s)
            found = await lookups.find(key)
        if found is None:
            return _json({"complete": complete}, 404)
        if found.get("body_ref") is not None:
            found = {**found, "response": (await _body(bodies, found["body_ref"])).get("response")}
        return _json(found)

    return router


def audit_routes(audit: Audit) -> APIRouter:
    """Build the routes that `reef replay` compares stores with. POST: a key may be any text."""
    router = APIRouter(prefix="/audit/{table}", default_response_class=Response)

    @router.post("/page")
    async def page(
        table: str, asked: Range, limit: Annotated[int, Query(ge=1, le=100_000)] = 10_000
    ) -> Response:
        return _json(asdict(await audit.page(table, after=asked.after, limit=limit)))

    @router.post("/span")
    async def span(table: str, asked: Range) -> Response:
        return _json(asdict(await audit.span(table, after=asked.after, until=asked.until)))

    @router.post("/rows")
    async def rows(table: str, asked: Range) -> Response:
        return _json(await audit.rows(table, after=asked.after, until=asked.until))

    @router.post("/picked")
    async def picked(table: str, asked: Picked) -> Response:
        return _json(await audit.picked(table, asked.keys))

    @router.post("/row")
    async def row(table: str, asked: tuple[str, ...]) -> Response:
        return _json(await audit.row(table, asked))

    return router


async def errors_as_answers(request: Request, call_next: Next) -> Response:
    """Middleware: 503 if the store is away, 400 for an unknown cursor, 404 for an unknown list."""
    try:
        return await call_next(request)
    except Unavailable as error:
        return _error(503, str(error), "store_unavailable", {"retry-after": "1"})
    except UnknownCursor as error:
        return _error(400, str(error), "invalid_cursor")
    except Poison as error:
        return _error(404, str(error), "not_found")


async def _body(bodies: BodyStore, ref: object) -> dict[str, Any]:
    try:
        body = from_json(await bodies.read(BodyRef.model_validate(ref)))
    except (Poison, Unavailable, ValueError):
        return {}
    return body if isinstance(body, dict) else {}


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    # Not orjson: bodies may hold integers of any size, which it refuses.
    return Response(
        to_json(value, inf_nan_mode="null"),
        status_code=status,
        headers=headers,
        media_type="application/json",
    )


def _error(status: int, message: str, code: str, headers: dict[str, str] | None = None) -> Response:
    error = {"message": message, "type": "reef_error", "code": code}
    return _json({"error": error}, status, headers)
