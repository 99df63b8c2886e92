"""A gateway on ports in memory, in front of the stub engine, both on real sockets."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import uvicorn

from reefcommon.config import ServeConfig, parse
from reefcommon.settings import SystemSettings
from services.gateway.composition import Gateway, Ports, assemble
from services.gateway.domain.access import Access
from services.gateway.settings import Settings
from services.gateway.upstream.engines import HttpEngines
from services.gateway.upstream.providers import Provider
from tests.fakes.artifacts import MemoryArtifactStore

from .fakes import (
    NO_SERVICES,
    MemoryBodies,
    MemoryCommands,
    MemoryHeads,
    MemoryKeyStore,
    MemoryLog,
    MemoryReads,
    release,
)
from .stub_engine import StubEngine

if TYPE_CHECKING:
    import openai

CONFIG = parse("reef:\n  recipe: recipes.sao.recipe:SAORecipe\n  batch_size: 4\nmodel: tiny\n")
FAULTS = (
    "slow",
    "silent",
    "tools",
    "cut",
    "torn",
    "limited",
    "broken",
    "garbage",
    "misfire",
    "provider",
    "absent",
)
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]


@contextlib.asynccontextmanager
async def serving(app: Any) -> AsyncIterator[str]:
    """An application on a free loopback port."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app,
        log_level="critical",
        ws="none",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
        lifespan="on",
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve([listener]))
    while not server.started:
        assert not task.done(), "the server did not start"
        await asyncio.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task
        listener.close()


@dataclass
class Bench:
    """A gateway under test and everything around it."""

    url: str
    gateway: Gateway
    engine: StubEngine
    log: MemoryLog
    heads: MemoryHeads
    key_store: MemoryKeyStore
    reads: MemoryReads
    commands: MemoryCommands
    engines: HttpEngines
    bodies: MemoryBodies
    http: httpx.AsyncClient = field(repr=False)

    def openai(self, **headers: str) -> "openai.AsyncOpenAI":
        """The real client, without its own retries."""
        import openai  # a second of CPU, which most tests do not need

        named = {name.replace("_", "-"): value for name, value in headers.items()}
        # On the bench's own connections, so that they are closed with it.
        return openai.AsyncOpenAI(
            base_url=f"{self.url}/v1",
            api_key="none",
            max_retries=0,
            default_headers=named,
            http_client=self.http,
        )

    async def chat(
        self, scenario: str = "default", headers: dict[str, str] | None = None, **fields: Any
    ) -> httpx.Response:
        """One chat completion."""
        named = {"x-reef-scenario": scenario, **(headers or {})}
        return await self.http.post(
            "/v1/chat/completions",
            json={"model": "reef", "messages": CHAT, **fields},
            headers=named,
        )

    async def report(self, scenario: str = "default", **body: Any) -> httpx.Response:
        """One report."""
        return await self.http.post(
            "/reef/report", json=body, headers={"x-reef-scenario": scenario}
        )


@contextlib.asynccontextmanager
async def bench_of(
    *,
    access: Access | None = None,
    key_store: MemoryKeyStore | None = None,
    stub: StubEngine | None = None,
    real_engine: str = "",
    artifacts: MemoryArtifactStore | None = None,
    state_dir: Path = Path(".reef"),
    config: ServeConfig | None = None,
    providers: Mapping[str, Provider] | None = None,
    **settings: Any,
) -> AsyncIterator[Bench]:
    """A gateway with these settings. `default` is served by the base model; each fault is a scenario whose adapter has its name."""
    engine = stub or StubEngine()
    async with serving(engine.app) as engine_url:
        system = SystemSettings(
            engine_urls=real_engine or engine_url,
            model_name="reef",
            state_dir=state_dir,
            **NO_SERVICES,
        )
        engines = HttpEngines(
            system.engines,
            connect_timeout_s=settings.pop("connect_s", 1.0),
            read_timeout_s=settings.pop("silence_s", 5.0),
        )
        log, heads, reads, commands = MemoryLog(), MemoryHeads(), MemoryReads(), MemoryCommands()
        bodies, key_store = MemoryBodies(), key_store or MemoryKeyStore()
        for scenario, adapter in {"default": None, **{name: name for name in FAULTS}}.items():
            heads.chains[scenario] = [release(scenario, 0, adapter)]

        def lifespan(made: Gateway) -> Any:
            @contextlib.asynccontextmanager
            async def span(_app: Any) -> AsyncIterator[None]:
                await made.scenarios.snapshot()
                yield
                await made.edge.repeats.drain(asyncio.get_running_loop().time() + 60)
                await asyncio.gather(*made.edge.inference.recorder.leftovers)
                await engines.stop()

            return span

        gateway = assemble(
            Settings(**settings),
            system,
            Ports(
                *(log, bodies, engines, heads, key_store, reads, commands),
                artifacts=artifacts,
                providers=providers or {},
            ),
            access=access or Access(),
            config=config or CONFIG,
            lifespan=lifespan,
        )
        async with serving(gateway.app) as url, httpx.AsyncClient(base_url=url, timeout=20) as http:
            yield Bench(
                url, gateway, engine, log, heads, key_store, reads, commands, engines, bodies, http
            )


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A gateway with the default settings."""
    async with bench_of() as made:
        yield made
