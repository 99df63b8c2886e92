"""The gateway's edge without sockets: quick to make, so that tables of cases can be long."""

import contextlib
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import httpx

from reefcommon.config import parse
from reefcommon.settings import SystemSettings
from services.gateway.composition import Gateway, Ports, assemble
from services.gateway.domain.access import Access, Token
from services.gateway.settings import Settings
from tests.fakes.artifacts import MemoryArtifactStore
from tests.gateway.fakes import (
    NO_SERVICES,
    MemoryBodies,
    MemoryCommands,
    MemoryHeads,
    MemoryKeyStore,
    MemoryLog,
    MemoryReads,
    release,
)

CHAT = {"messages": [{"role": "user", "content": "Hi"}]}
CONFIG = parse("reef:\n  recipe: recipes.sao.recipe:SAORecipe\nmodel: tiny\n")


def token(secret: str, *scopes: str, **fields: Any) -> Token:
    """A row of the tokens file."""
    return Token(sha256=hashlib.sha256(secret.encode()).hexdigest(), scopes=scopes, **fields)


def bearer(secret: str) -> dict[str, str]:
    return {"authorization": f"Bearer {secret}"}


class Answered:
    """EngineAnswer that is there at once."""

    def __init__(
        self, body: bytes, status: int = 200, content_type: bytes = b"application/json"
    ) -> None:
        self.status = status
        self.headers = [(b"content-type", content_type)]
        self.event_stream = content_type == b"text/event-stream"
        self._body = body

    async def read(self) -> bytes:
        return self._body

    async def chunks(self) -> AsyncIterator[bytes]:
        yield self._body

    async def close(self, *, finished: bool) -> None:
        return None


class InstantEngines:
    """Engines that answer every exchange with the same words."""

    BODY = b'{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}]}'

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.answer = lambda: Answered(self.BODY)

    async def open(self, exchange: Any) -> Answered:
        self.asked.append(exchange)
        return self.answer()

    def rows(self) -> list[dict[str, Any]]:
        return []


@dataclass
class Edge:
    """A gateway under test."""

    gateway: Gateway
    http: httpx.AsyncClient
    engines: Any
    log: MemoryLog
    reads: MemoryReads
    heads: MemoryHeads


@contextlib.asynccontextmanager
async def edge_of(
    *tokens: Token,
    scenarios: tuple[str, ...] = ("default", "mine"),
    engines: Any = None,
    buckets: Any = None,
    commands: Any = None,
    **settings: Any,
) -> AsyncIterator[Edge]:
    """A gateway with these tokens and settings, on ports in memory."""

    @contextlib.asynccontextmanager
    async def lifespan(_app: Any) -> AsyncIterator[None]:
        yield

    made = Settings(**settings)
    log, reads, heads, engines = (
        MemoryLog(),
        MemoryReads(),
        MemoryHeads(),
        engines or InstantEngines(),
    )
    heads.chains = {name: [release(name, 0, None)] for name in scenarios}
    gateway = assemble(
        made,
        SystemSettings(**NO_SERVICES),
        Ports(
            log,
            MemoryBodies(),
            engines,
            heads,
            MemoryKeyStore(),
            reads,
            commands or MemoryCommands(),
            buckets,
            MemoryArtifactStore(),
        ),
        access=Access(tokens, made.limit),
        config=CONFIG,
        lifespan=lambda _: lifespan,
    )
    await gateway.scenarios.snapshot()
    transport = httpx.ASGITransport(gateway.app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://reef") as http:
        yield Edge(gateway, http, engines, log, reads, heads)
