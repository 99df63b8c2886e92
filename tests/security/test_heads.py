"""Heads and bodies that are too large, too slow, or no HTTP: on real sockets, as a stranger would send them."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import uvicorn

from services.gateway.edge.httptools import bounded

from .conftest import Edge, edge_of

Stranger = Callable[[bytes], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@contextlib.asynccontextmanager
async def strangers(
    edge: Edge, *, max_head_bytes: int = 65536, head_timeout_s: float = 20.0
) -> AsyncIterator[Stranger]:
    """Connections to the gateway on its own protocol, as `python -m services.gateway` has it."""
    listener = socket.create_server(("127.0.0.1", 0))
    protocol = bounded(max_head_bytes, head_timeout_s)
    config = uvicorn.Config(
        edge.gateway.app,
        log_level="critical",
        http=protocol,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve([listener]))
    while not server.started:
        await asyncio.sleep(0.005)
    opened: list[asyncio.StreamWriter] = []

    async def connect(first: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        opened.append(writer)
        writer.write(first)
        return reader, writer

    try:
        yield connect
    finally:
        for writer in opened:
            writer.transport.abort()
        server.should_exit = True
        await serving
        listener.close()


async def answer_to(connect: Stranger, sent: bytes) -> bytes:
    """Everything that comes until the connection is closed."""
    reader, _ = await connect(sent)
    async with asyncio.timeout(60):
        return await reader.read()


async def test_heads_that_are_too_large() -> None:
    """431, 414, in the API's shape: many headers, long ones, a long target; the connection of a head that never ends is cut."""
    close = b"connection: close\r\n"
    async with (
        edge_of(max_headers=20, max_header_bytes=4096) as edge,
        strangers(edge, max_head_bytes=8192) as connect,
    ):
        many = (
            b"GET /healthz HTTP/1.1\r\nhost: x\r\n"
            + close
            + b"".join(b"x-h%d: 1\r\n" % n for n in range(30))
            + b"\r\n"
        )
        long = (
            b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + close + b"x-h: " + b"v" * 5000 + b"\r\n\r\n"
        )
        target = b"GET /" + b"a" * 5000 + b" HTTP/1.1\r\nhost: x\r\n" + close + b"\r\n"
        hot = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"
            + close
            + b"x-h: "
            + b"v" * 5000
            + b"\r\n\r\n"
        )
        for sent, status, code in (
            (many, b"431", b"headers_too_large"),
            (long, b"431", b"headers_too_large"),
            (target, b"414", b"target_too_large"),
            (hot, b"431", b"headers_too_large"),
        ):
            got = await answer_to(connect, sent)
            assert got.startswith(b"HTTP/1.1 " + status), got
            assert code in got
        for endless in (b"x-h: " + b"v" * 1000, b"x-h: v\r\n" * 120):
            reader, writer = await connect(b"GET / HTTP/1.1\r\nhost: x\r\nx-first: ")
            async with asyncio.timeout(60):
                with contextlib.suppress(ConnectionError):
                    while not reader.at_eof() and len(reader._buffer) == 0:  # type: ignore[attr-defined]
                        writer.write(endless)
                        await writer.drain()
                        await asyncio.sleep(0.001)
                    assert (await reader.read()).startswith(b"HTTP/1.1 431")
        assert (
            await answer_to(connect, b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + close + b"\r\n")
        ).startswith(b"HTTP/1.1 200")


async def test_heads_that_do_not_come() -> None:
    """A head that is begun and not ended is 408; a connection that says nothing is closed; one that is slow, but ends, is served."""
    async with edge_of() as edge, strangers(edge, head_timeout_s=0.2) as connect:
        got = await answer_to(connect, b"GET /healthz HTTP/1.1\r\nhost")
        assert got.startswith(b"HTTP/1.1 408")
        assert b"head_timeout" in got
        assert await answer_to(connect, b"") == b""
    async with edge_of() as edge, strangers(edge) as connect:
        reader, writer = await connect(b"GET /healthz HT")
        for part in (b"TP/1.1\r\n", b"host: x\r\nconnect", b"ion: close\r\n", b"\r\n"):
            await asyncio.sleep(0.01)
            writer.write(part)
        async with asyncio.timeout(60):
            assert (await reader.read()).startswith(b"HTTP/1.1 200")


async def test_a_body_that_stops_coming() -> None:
    """408, and its memory is given back; so it is where the client leaves in the middle."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n"
    async with edge_of(body_timeout_s=0.2) as edge, strangers(edge) as connect:
        reader, _ = await connect(head + b'{"messages"')
        async with asyncio.timeout(60):
            assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 408")
        _, writer = await connect(head + b"{" * 500)
        async with asyncio.timeout(60):
            while edge.gateway.edge.memory.held < 500:
                await asyncio.sleep(0.005)
            writer.transport.abort()
            while edge.gateway.edge.memory.held:
                await asyncio.sleep(0.005)
        assert edge.log.appended == []


async def test_a_body_that_drips(monkeypatch: pytest.MonkeyPatch) -> None:
    """408 also where it never stops coming: no one may hold a place for ever, a byte at a time."""
    monkeypatch.setattr("services.gateway.edge.bodies.BODY_SILENCES", 0.01)
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n"
    async with edge_of(body_timeout_s=60) as edge, strangers(edge) as connect, asyncio.timeout(60):
        reader, writer = await connect(head + b"{")
        answer = asyncio.ensure_future(reader.readuntil(b"}}"))
        while not answer.done():
            writer.write(b" ")
            await asyncio.sleep(0.02)
        assert (await answer).startswith(b"HTTP/1.1 408")
        assert b"was not there after 0.6 s" in await answer
        assert edge.gateway.edge.memory.held == 0


@pytest.mark.parametrize(
    "name",
    [
        "authorization",
        "x-reef-scenario",
        "x-reef-agent-record-id",
        "x-reef-capture",
        "x-reef-tag-session",
    ],
)
async def test_a_header_that_is_meant_once(name: str) -> None:
    """400 that names it, on every route: which of the two was meant is not guessed. Other headers may come twice."""
    async with edge_of() as edge, strangers(edge) as connect:
        for target in (b"POST /reef/report", b"GET /reef/status"):
            twice = f"{name}: a\r\n{name}: b\r\n".encode()
            got = await answer_to(
                connect,
                target
                + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 0\r\n"
                + twice
                + b"\r\n",
            )
            assert got.startswith(b"HTTP/1.1 400"), got
            assert f"The header {name} is there more than once.".encode() in got
        accepts = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\naccept: a/b\r\naccept: c/d\r\n\r\n"
        assert (await answer_to(connect, accepts)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nbad header: 1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nx-a: 1\r\n folded\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nx-a: a\x00b\r\n\r\n",
        b"POST /reef/report HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /reef/report HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcde",
        b'POST /reef/report HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{"a\r\nxyz\r\n',
        b'POST /reef/scenarios HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\n{"a\r\nxyz\r\n',
    ],
    ids=[
        "tls",
        "both-lengths",
        "bad-name",
        "folded",
        "nul",
        "negative-length",
        "two-lengths",
        "bad-chunk",
        "bad-chunk-of-control",
    ],
)
async def test_what_is_no_http(sent: bytes) -> None:
    """400 in the API's shape, and the connection is closed: nothing can be smuggled behind it."""
    async with edge_of() as edge, strangers(edge) as connect:
        got = await answer_to(connect, sent)
        assert got.startswith(b"HTTP/1.1 400"), got
        assert b'"type":"invalid_request_error"' in got
        assert got.count(b"HTTP/1.1") == 1
        assert edge.log.appended == []
