"""`/openapi.json` is tried, not believed: requests made from it, right and wrong ones, get what it says they get."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from reefcommon.events import ReleasePublished, utc_now
from services.gateway.upstream.engines import HttpEngines
from tests.gateway.conftest import serving
from tests.gateway.fakes import release
from tests.gateway.stub_engine import StubEngine

from .conftest import edge_of, token
from .test_scopes import EXPECTED

SECRET = "openapi-token"
REJECTS = checks.negative_data_rejection


class Engine(StubEngine):
    """With embeddings."""

    @property
    def app(self) -> Starlette:
        made = super().app
        made.router.routes.append(Route("/v1/embeddings", self.embed, methods=["POST"]))
        return made

    async def embed(self, _request: Any) -> JSONResponse:
        return JSONResponse(
            {
                "object": "list",
                "data": [{"object": "embedding", "index": 0, "embedding": [0.5]}],
                "model": "reef",
            }
        )


class ObedientCommands:
    """A publisher that does as it is told."""

    async def submit(self, command: Any, *, timeout_s: float) -> ReleasePublished:
        made = release(command.scenario, 1, None)
        return ReleasePublished(
            event_id=made.release_id,
            at=utc_now(),
            scenario=command.scenario,
            release=made,
            command_id=command.event_id,
        )


class Running:
    """The gateway with the stub engine, on a loop and a thread of its own: what asks is synchronous."""

    def __init__(self) -> None:
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Running":
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        async with serving(Engine().app) as engine_url:
            engines = HttpEngines((engine_url,))
            async with (
                edge_of(
                    token(SECRET, "admin"), engines=engines, commands=ObedientCommands()
                ) as edge,
                serving(edge.gateway.app) as self.url,
            ):
                edge.gateway.fanout.close()  # a live tail ends at once
                for kind in ("records", "sessions", "samples", "steps"):
                    edge.reads.rows[f"/scenarios/default/{kind}"] = {
                        "data": [],
                        "next_cursor": None,
                    }
                self._ready.set()
                await self._stop.wait()
            await engines.stop()


@pytest.fixture(scope="module")
def described() -> Iterator[Any]:
    with Running() as running:
        yield schemathesis.openapi.from_url(f"{running.url}/openapi.json")


# Its refusals are scripts for `curl … | bash`, with status 200.
SCRIPTS = ("/reef/harness/install",)


def no_server_error(ctx: Any, response: Any, case: Any) -> bool | None:
    """As schemathesis has it. A host that is not part of the test may be away."""
    away = response.status_code == 503 and b"host_unavailable" in response.content
    return None if away else not_a_server_error(ctx, response, case)


CHECKS = [
    no_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    REJECTS,
    checks.unsupported_method,
]


BOUNDED = settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
OPERATIONS = [(method, path) for (method, path), scope in EXPECTED.items() if scope is not None]


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda value: value)
def test_the_gateway_does_what_its_description_says(
    described: Any, method: str, path: str, mode: GenerationMode
) -> None:
    """No server error, no status, type, header or body that is not described, nothing wrong accepted. (What needs a token: test_scopes.)"""
    operation = described[path][method]
    if mode is GenerationMode.NEGATIVE and not (
        operation.path_parameters or operation.query or operation.headers or operation.body
    ):
        return  # nothing that could be wrong

    @BOUNDED
    @given(case=operation.as_strategy(generation_mode=mode))
    def one(case: schemathesis.Case) -> None:
        case.call_and_validate(
            checks=[each for each in CHECKS if path not in SCRIPTS or each is not REJECTS],
            headers={"authorization": f"Bearer {SECRET}"},
            timeout=60,
        )

    one()
